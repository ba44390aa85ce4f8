"""The CPU quota is read from control groups (v1 and v2, nested or not) and limits the default number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softargmax.core import cpu_quota as module
from softargmax.core.cpu_quota import cpu_quota, quota_threads

V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw"
V1 = [
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct",
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory",
]


def tree(root: Path, groups: list[str], mounts: list[str], files: dict[str, str]) -> Path:
    """Write, under `root`, the files in which the Linux kernel describes control groups. Return `root`."""
    shown = {"proc/self/cgroup": "\n".join(groups), "proc/self/mountinfo": "\n".join(mounts)}
    for name, text in {**shown, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8", errors="surrogateescape")
    return root


def v2(root: Path, group: str, quotas: dict[str, str], mount: str = V2) -> float | None:
    files = {f"sys/fs/cgroup{path}/cpu.max": quota for path, quota in quotas.items()}
    return cpu_quota(tree(root, [f"0::{group}"], [mount], files))


def v1(root: Path, group: str, quotas: dict[str, str], period: str = "100000") -> float | None:
    files = {}
    for path, quota in quotas.items():
        files[f"sys/fs/cgroup/cpu,cpuacct{path}/cpu.cfs_quota_us"] = quota
        files[f"sys/fs/cgroup/cpu,cpuacct{path}/cpu.cfs_period_us"] = period
    return cpu_quota(tree(root, ["4:memory:/other", f"1:cpu,cpuacct:{group}", "0::/"], V1, files))


def test_a_quota_of_version_2(tmp_path: Path) -> None:
    assert v2(tmp_path, "/job", {"/job": "150000 100000"}) == 1.5


def test_no_quota_of_version_2(tmp_path: Path) -> None:
    assert v2(tmp_path, "/job", {"/job": "max 100000"}) is None


def test_the_smallest_of_nested_groups_counts(tmp_path: Path) -> None:
    assert v2(tmp_path, "/a/b/c", {"/a": "200000 100000", "/a/b": "300000 100000", "/a/b/c": "max 100000"}) == 2.0


def test_sibling_groups_do_not_count(tmp_path: Path) -> None:
    assert v2(tmp_path, "/a", {"/a": "400000 100000", "/b": "100000 100000"}) == 4.0


def test_a_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    assert v2(tmp_path, "/", {"": "50000 100000"}) == 0.5


def test_a_mount_that_shows_a_part_of_the_tree(tmp_path: Path) -> None:
    mount = V2.replace("0:28 / ", "0:28 /docker/abc ")
    assert v2(tmp_path, "/docker/abc/job", {"": "300000 100000", "/job": "200000 100000"}, mount) == 2.0


def test_a_group_outside_the_mount_is_taken_for_its_root(tmp_path: Path) -> None:
    mount = V2.replace("0:28 / ", "0:28 /docker/abc ")
    assert v2(tmp_path, "/elsewhere", {"": "300000 100000"}, mount) == 3.0


def test_a_mount_point_with_a_space(tmp_path: Path) -> None:
    mount = V2.replace("/sys/fs/cgroup", r"/sys/fs/c\040group")
    root = tree(tmp_path, ["0::/a"], [mount], {"sys/fs/c group/a/cpu.max": "100000 50000"})
    assert cpu_quota(root) == 2.0


# A byte that is not UTF-8, a space that the kernel does not escape, and characters that end a line for Python.
@pytest.mark.parametrize("name", ["caf\udce9", "a\u00a0b", "a\x85b", "a\u2028b", "a\rb", "a\x0cb"], ids=ascii)
def test_a_mount_point_may_have_any_bytes(name: str, tmp_path: Path) -> None:
    mount = V2.replace("/sys/fs/cgroup", f"/sys/fs/{name}")
    root = tree(tmp_path, ["0::/a"], [mount], {f"sys/fs/{name}/a/cpu.max": "100000 50000"})
    assert cpu_quota(root) == 2.0


def test_short_lines_are_skipped(tmp_path: Path) -> None:
    groups = ["", "0", "4:cpu", "0::/a"]
    short = "31 23 0:28 /"
    mounts = ["", short, f"{short} - cgroup2", f"{short}  - cgroup2 cgroup2 rw", f"{short} /x - cgroup", V2]
    assert cpu_quota(tree(tmp_path, groups, mounts, {"sys/fs/cgroup/a/cpu.max": "100000 50000"})) == 2.0


def test_a_huge_quota_is_an_int_of_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_quota", lambda: 17e9)
    assert 1 << 16 < quota_threads() < 1 << 31


def test_a_quota_of_version_1(tmp_path: Path) -> None:
    assert v1(tmp_path, "/job", {"/job": "250000"}) == 2.5


def test_no_quota_of_version_1(tmp_path: Path) -> None:
    assert v1(tmp_path, "/job", {"": "-1", "/job": "-1"}) is None


def test_nested_groups_of_version_1(tmp_path: Path) -> None:
    assert v1(tmp_path, "/a/b", {"": "-1", "/a": "100000", "/a/b": "800000"}) == 1.0


def test_a_controller_of_version_1_beside_an_empty_tree_of_version_2(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "20000"}
    files["sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us"] = "10000"
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
    assert cpu_quota(tree(tmp_path, ["1:cpu,cpuacct:/job", "0::/"], [*V1, unified], files)) == 2.0


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3", "0 100000", "100000 0", "nan 100000", "inf 1"])
def test_a_file_that_cannot_be_read_sets_no_quota(text: str, tmp_path: Path) -> None:
    assert v2(tmp_path, "/job", {"/job": text}) is None


def test_no_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


THREADS = """
import sys
from pathlib import Path
import softargmax
from softargmax.core import cpu_quota
read = cpu_quota.cpu_quota
cpu_quota.cpu_quota = lambda: read(Path(sys.argv[1]))
if len(sys.argv) > 2:
    softargmax.set_num_threads(int(sys.argv[2]))
print(softargmax.get_num_threads())
"""


TORCH = "import torch; torch.set_num_threads(4)"


@pytest.mark.parametrize(
    ("environment", "before", "arguments", "threads"),
    [
        ({}, "", [], 1),
        ({"OMP_NUM_THREADS": "2"}, "", [], 2),
        ({"OMP_NUM_THREADS": "many"}, "", [], 1),
        ({}, "", ["2"], 2),
        ({}, TORCH, [], 1),
    ],
    ids=["by default", "OMP_NUM_THREADS", "OMP_NUM_THREADS, no number", "set_num_threads", "torch"],
)
def test_a_quota_limits_the_default_number_of_threads(
    tmp_path: Path, environment: dict[str, str], before: str, arguments: list[str], threads: int
) -> None:
    if before:
        pytest.importorskip("torch")
    assert v2(tmp_path, "/job", {"/job": "50000 100000"}) == 0.5
    given = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | environment
    command = [sys.executable, "-c", before + THREADS, str(tmp_path), *arguments]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=given).stdout
    assert int(found) == threads
