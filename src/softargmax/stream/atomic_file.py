"""Files that get their name when they are complete, and do not appear otherwise."""

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
    """Write a file that takes its name when the block ends well; until then, and after any error, the old one stays.

    The data goes to a file beside the target, which is synced to disk and then renamed. On Linux that file has no name
    until it is whole, so that a killed process leaves nothing half written behind (between the two names, for
    microseconds, a whole file with a hidden one). A target that exists keeps its permissions.

    Parameters
    ----------
    path : path
        The target. A link is followed: the file that it leads to is replaced.
    size : int
        How many bytes will be written, if known: they are reserved at once, so that a full disk is told before the
        work and not hours into it.

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
    fd, name = _open_beside(target)
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
        os.fsync(directory)  # the rename itself must reach the disk too
    finally:
        os.close(directory)


def _reserve(fd: int, size: int) -> None:
    """Take the room on the disk, where the file system can."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _free_name(target: Path) -> Path:
    return target.with_name(f".{target.name[:200]}.{os.getpid()}-{os.urandom(4).hex()}.part")


def _open_beside(target: Path) -> tuple[int, Path | None]:
    """Open a new file in the target's folder: without a name where the system can, else under a hidden one."""
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
    """Give an unnamed file its name (only with folder descriptors does Python follow the link in /proc)."""
    directory = os.open(name.parent, os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{fd}", name.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
