"""Run the command as ``python -m softargmax.cli``, for systems where its script is not on the path."""

import sys

from softargmax.cli import main

if __name__ == "__main__":
    sys.exit(main())
