"""Checkpoints: contents, and errors of invalid ones."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.words import TEXTS, job, run

from softargmax.cli.errors import FailedRunError
from softargmax.cli.words.torch_worker import JobRun


def test_a_checkpoint_is_a_safetensors_file(tmp_path):
    done = run(job(tmp_path, "hierarchical"))
    found = load_file(tmp_path / "hierarchical.safetensors")
    expected = done.training.tensors()
    assert found.keys() == expected.keys() == done.training.shapes().keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert {"model.layer.weight", "model.body.embedding.weight", "adam.0.step", "sparse_adam.0.exp_avg"} <= set(found)


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.01, 0.5, 0.999999])
def test_truncated_checkpoint(tmp_path, share):
    run(job(tmp_path))
    path = tmp_path / "full.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(FailedRunError, match=r"full.safetensors is not a complete checkpoint: "):
        JobRun(job(tmp_path, resume=True), TEXTS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dim": 8}, "was trained with --dim 16, not 8"),
        ({"seed": 3, "lr": 0.5}, "was trained with --lr 0.01, not 0.5, and with --seed 0, not 3"),
        ({"model": "attention"}, "was trained with --model window, not attention"),
        ({"digest": "other"}, "was trained with another text, --tokens or --vocab"),
    ],
)
def test_a_checkpoint_of_other_settings(tmp_path, changed, message):
    run(job(tmp_path))
    with pytest.raises(FailedRunError, match=message + "$"):
        JobRun(job(tmp_path, resume=True, **changed), TEXTS)


def test_a_checkpoint_of_another_layer(tmp_path):
    run(job(tmp_path))
    (tmp_path / "full.safetensors").rename(tmp_path / "sampled.safetensors")
    with pytest.raises(FailedRunError, match="was trained with --layer full, not sampled"):
        JobRun(job(tmp_path, "sampled", resume=True), TEXTS)


def changed_tensors(path, change):
    """Rewrite a checkpoint after `change` has changed its tensors."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    metadata, tensors = json.loads(data[8 : 8 + size])["__metadata__"], load_file(path)
    change(tensors)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.update({"model.layer.weight": torch.zeros(5, 16)}),
            r"model.layer.weight: expected shape \(60, 16\), got \(5, 16\)",
        ),
        (lambda t: t.update({"adam.0.exp_avg": torch.zeros(5)}), r"adam.0.exp_avg: expected shape .*, got \(5,\)"),
        (lambda t: t.pop("model.body.out.weight"), "expected tensor model.body.out.weight, got none"),
        (lambda t: t.update({"model.more": torch.zeros(5)}), "unexpected tensor model.more"),
    ],
)
def test_a_checkpoint_of_other_shapes(tmp_path, change, message):
    run(job(tmp_path))
    changed_tensors(tmp_path / "full.safetensors", change)
    with pytest.raises(FailedRunError, match=f"full.safetensors: {message}"):
        JobRun(job(tmp_path, resume=True), TEXTS)


def test_safetensors_file_that_is_not_a_checkpoint(tmp_path):
    save_file({"x": torch.zeros(3)}, tmp_path / "full.safetensors")
    with pytest.raises(FailedRunError, match=r"full.safetensors is not a checkpoint of `softargmax train-words`"):
        JobRun(job(tmp_path, resume=True), TEXTS)
