"""Fixtures that run the command in this process or in a separate one."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from softargmax.cli import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Return a function that runs a command line in this process, in an empty folder.

    The function returns the exit code, the output and the errors.
    """
    monkeypatch.chdir(tmp_path)

    def run(*words, stdin=b""):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err, json=lambda: json.loads(out))

    return run


@pytest.fixture
def command(tmp_path):
    """Return a function that runs a command line in a separate process, in an empty folder."""

    def command(*words, **options):
        line = [sys.executable, "-m", "softargmax.cli", *map(str, words)]
        options = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 120} | options
        return subprocess.run(line, **options)

    return command
