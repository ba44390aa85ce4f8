"""Streams in separate processes: killed midway, on a full disk, without permission, several at once."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import softargmax

SLOW = """
import signal, sys, time
from softargmax import stream
signal.signal(signal.SIGINT, signal.default_int_handler)  # restores SIGINT, which background jobs of a shell ignore
def report(done, total):
    print(done, flush=True)
    time.sleep(0.2)
stream.softmax(sys.argv[1], sys.argv[2], memory=1 << 20, progress=report)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("exists", [True, False])
def test_killed_process_leaves_the_old_target(tmp_path, source, how, exists):
    target = tmp_path / "p.npy"
    if exists:
        target.write_bytes(b"old")
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, source, target], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with child:
        child.stdout.readline()  # returns after the first window has been written
        child.send_signal(how)
        child.communicate(timeout=30)
    assert child.returncode != 0
    if exists:
        assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(["p.npy"] if exists else []), "z.npy"]


FULL = """
import resource, sys
from softargmax import stream
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
stream.softmax(sys.argv[1], sys.argv[2])
"""


def test_a_full_disk_raises_before_the_work(tmp_path, source, old):
    done = subprocess.run([sys.executable, "-c", FULL, source, old], capture_output=True, text=True)
    assert done.returncode == 1
    assert "OSError" in done.stderr
    assert "p.npy" in done.stderr.splitlines()[-1]
    assert old.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "z.npy"]


def as_nobody(script, *arguments):
    """Run a script as a user who, unlike root, lacks permission to write to some folders.

    Everything is imported before the user changes, because the new user may have no right to read the package.
    """
    load = "import numpy, numpy.ma, softargmax.stream, sys\nsoftargmax.stream.logsumexp([numpy.zeros(3)])\n"
    drop = "import os\nif os.getuid() == 0:\n    os.setgid(65534); os.setuid(65534)\n"
    return subprocess.run(
        [sys.executable, "-c", f"{load}{drop}{script}", *arguments],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("what", ["folder", "file"])
def test_read_only_targets(tmp_path, what):
    folder = tmp_path / "folder"
    folder.mkdir()
    target = folder / "p.npy"
    target.write_bytes(b"old")
    target.chmod(0o444 if what == "file" else 0o666)
    folder.chmod(0o555 if what == "folder" else 0o777)
    for above in (tmp_path, *tmp_path.parents[:3]):
        if above.stat().st_uid == os.getuid() and above != above.parent:
            above.chmod(above.stat().st_mode | 0o011)
    done = as_nobody("softargmax.stream.softmax(numpy.zeros(3), sys.argv[1])", target)
    folder.chmod(0o777)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("PermissionError")
    assert str(folder) in last
    assert target.read_bytes() == b"old"


def test_many_writers_of_one_target(tmp_path, source):
    target = tmp_path / "p.npy"
    script = "import sys\nfrom softargmax import stream\nstream.softmax(sys.argv[1], sys.argv[2])"
    children = [subprocess.Popen([sys.executable, "-c", script, source, target]) for _ in range(3)]
    end = time.monotonic() + 60
    for child in children:
        assert child.wait(timeout=max(end - time.monotonic(), 1)) == 0
    assert np.load(target).tobytes() == softargmax.softmax(np.load(source)).tobytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "z.npy"]
