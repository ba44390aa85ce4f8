"""Write files that appear under their name only when they are complete."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def whole_file(path: str | os.PathLike[str], size: int = 0) -> Iterator[BinaryIO]:
    """Write a file that appears under its name when the ``with`` block ends without an error.

    An old file of this name stays until then. The data is written to a new file in the target's folder. This file is
    synced to disk and then renamed. On Linux the new file has no name until it is complete, so a killed process leaves
    no partial file. (For microseconds before the rename, the complete file has a hidden name.) The permissions of an
    existing target are kept.

    Parameters
    ----------
    path : path
        The target. If it is a symbolic link, the file that it points to is replaced.
    size : int
        The number of bytes to be written, or 0 if unknown. The space is reserved first, so that a full disk raises
        OSError before the work starts, not hours later.

    Examples
    --------
    >>> import tempfile, pathlib, softargmax
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with softargmax.stream.whole_file(target) as file:
    ...     count = file.write(b"whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    if target.exists():
        if not target.is_file():
            raise ValueError(f"target: expected a regular file or a new name, got {path}")
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "is read-only", os.fspath(path))
    fd, name = _open_temporary(target)
    try:
        with os.fdopen(fd, "wb") as file:
            if size:
                _reserve(fd, size)
            yield file
            file.flush()
            os.fsync(fd)
            if target.exists():
                os.fchmod(fd, target.stat().st_mode & 0o7777)
            if name is None:
                name = _free_name(target)
                _link(fd, name)
        name.replace(target)
    except BaseException as error:
        if name is not None:
            with suppress(OSError):
                name.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # writes the rename to the disk
    finally:
        os.close(directory)


def _reserve(fd: int, size: int) -> None:
    """Reserve space on the disk, if the file system supports it."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _free_name(target: Path) -> Path:
    return target.with_name(f".{target.name[:200]}.{os.getpid()}-{os.urandom(4).hex()}.part")


def _open_temporary(target: Path) -> tuple[int, Path | None]:
    """Open a new file in the target's folder: without a name if the system supports that, otherwise with a hidden name.

    Return the file's descriptor, and its name (None for a file without a name).
    """
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is not None and Path("/proc/self/fd").is_dir():
        try:
            return os.open(target.parent, unnamed | os.O_RDWR | os.O_CLOEXEC, 0o666), None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.EISDIR):
                raise
    name = _free_name(target)
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666), name


def _link(fd: int, name: Path) -> None:
    """Give a name to the open, unnamed file with descriptor `fd`.

    The symbolic link /proc/self/fd/N refers to the file with descriptor N. The new name becomes a hard link to this
    file. `os.link` follows the symbolic link only if folder descriptors are passed.
    """
    directory = os.open(name.parent, os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{fd}", name.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
