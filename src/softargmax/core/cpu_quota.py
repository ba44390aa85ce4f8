"""The CPU quota of this process: how many processors its control groups (cgroups, v1 and v2) let it use.

A container with `--cpus=2` on a machine of 64 processors may run on all of them, for 2 seconds of CPU time per second.
With 64 threads it would use up its quota in a burst and then be stopped until the next period.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def quota_threads() -> int:
    """Return the limit of the default number of threads: the quota, rounded up, or 0 if there is no limit."""
    quota = cpu_quota()
    return 0 if quota is None else math.ceil(min(quota, 1 << 20))  # the core expects an int of C


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the smallest quota, in processors, of the groups that contain this process, or None if no group has one.

    `root` is the directory that contains `proc/self/cgroup`, `proc/self/mountinfo` and the mounted groups.
    """
    try:
        groups, mounts = (_lines(root / "proc/self" / name) for name in ("cgroup", "mountinfo"))
    except OSError:  # not Linux, or /proc is not mounted
        return None
    quotas = []
    for mount_point, group in _hierarchies(groups, mounts):
        for directory in (group, *group.parents):
            quotas.append(_quota(root.joinpath(*directory.parts[1:])))
            if directory == mount_point:
                break
    return min((quota for quota in quotas if quota is not None), default=None)


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of paths. A path may contain any byte, except that of a newline."""
    return os.fsdecode(path.read_bytes()).split("\n")


def _hierarchies(groups: list[str], mounts: list[str]) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """For each mounted hierarchy that may have a quota, yield its mount point and this process's group directory."""
    group_of: dict[str, PurePosixPath] = {}
    for line in groups:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if path:
            group_of.update(dict.fromkeys(controllers.split(","), PurePosixPath(path)))
    for line in mounts:
        mount, _, rest = line.partition(" - ")
        kind, _, options = [*rest.split(" ", 2), "", ""][:3]
        fields = [PurePosixPath(_unescaped(field)) for field in mount.split(" ")[3:5]]
        controller = {"cgroup2": "", "cgroup": "cpu"}.get(kind, "none")
        if controller not in group_of or (controller and controller not in options.split(",")) or len(fields) < 2:
            continue
        mount_root, mount_point = fields
        group = group_of[controller]
        # In a container, the group's path may be outside the mount's root. Then the mount point is used as the group's
        # directory.
        yield mount_point, mount_point / (group.relative_to(mount_root) if group.is_relative_to(mount_root) else "")


def _unescaped(field: str) -> str:
    """Decode a field of mountinfo, which contains spaces and some other characters as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _quota(directory: Path) -> float | None:
    """Return the quota that one group sets: CPU time per period divided by the period, both in microseconds."""
    try:
        if (directory / "cpu.max").exists():
            text = (directory / "cpu.max").read_text(encoding="utf-8")
        else:
            text = " ".join((directory / f"cpu.cfs_{x}_us").read_text(encoding="utf-8") for x in ("quota", "period"))
        quota, period = map(int, text.split())
        return quota / period if quota > 0 and period > 0 else None
    except (OSError, ValueError):  # the root group has no such file, and "max" (no limit) is not a number
        return None
