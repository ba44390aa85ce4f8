"""Run the command as ``python -m softargmax.cli``, for systems where the script ``softargmax`` is not on the path."""

import sys

from softargmax.cli import main

if __name__ == "__main__":
    sys.exit(main())
