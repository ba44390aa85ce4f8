"""Checkpoints: safetensors files that contain everything needed to resume, written atomically."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from softargmax.cli.errors import FailedRunError
from softargmax.stream import whole_file

if TYPE_CHECKING:
    from softargmax.cli.words.torch_training import Training

FORMAT = "softargmax train-words 1"
DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}


def save(path: str, training: Training, digest: str, record: dict[str, Any]) -> None:
    """Write the training state, and `record`: the perplexity curve and the peak memory so far.

    The old file stays until the new file is complete.

    Tensors are written one by one. The functions of safetensors would need memory for a second copy of all tensors, or
    leave a partial file if the process is killed.
    """
    identity = {**asdict(training.settings), "text": digest}
    record = {**record, "step": training.step, "seconds": training.seconds}
    metadata = {"format": FORMAT, "identity": json.dumps(identity), "record": json.dumps(record)}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    tensors = {name: tensor.detach().contiguous() for name, tensor in training.tensors().items()}
    for name, tensor in tensors.items():
        place = [end, end := end + tensor.nbytes]
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with whole_file(path, 8 + len(head) + end) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(tensor.numpy().data)


def load(path: str, training: Training, digest: str) -> dict[str, Any]:
    """Restore the training from a checkpoint of the same settings and text. Return the `record` that was saved."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise FailedRunError(f"{path} is not a checkpoint of `softargmax train-words`")
            check_identity(path, json.loads(metadata["identity"]), {**asdict(training.settings), "text": digest})
            # Copy each tensor into memory that torch allocates. torch aligns this memory, and the bits of results can
            # depend on alignment.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 not a mapping
    except SafetensorError as error:
        raise FailedRunError(f"{path} is not a complete checkpoint: {error}") from error
    check_shapes(path, tensors, training.shapes())
    training.restore(tensors)
    record: dict[str, Any] = json.loads(metadata["record"])
    training.step, training.seconds = record.pop("step"), record.pop("seconds")
    return record


def check_identity(path: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise FailedRunError with the differences if the checkpoint has other settings or another text."""
    differ = [name for name in expected if found.get(name) != expected[name]]
    if differ:
        differences = [f"--{name} {found.get(name)}, not {expected[name]}" for name in differ if name != "text"]
        differences += ["another text, --tokens or --vocab"] if "text" in differ else []
        raise FailedRunError(f"{path} was trained with {', and with '.join(differences)}")


def check_shapes(path: str, found: dict[str, Tensor], expected: dict[str, torch.Size]) -> None:
    """Raise FailedRunError if the tensors of a checkpoint have other names or shapes than expected."""
    missing = [name for name in expected if name.startswith("model.") and name not in found]
    unknown = [name for name in found if name not in expected]
    if missing or unknown:
        problem = f"expected tensor {missing[0]}, got none" if missing else f"unexpected tensor {unknown[0]}"
        raise FailedRunError(f"{path}: {problem}")
    for name, tensor in found.items():
        if tensor.shape != expected[name]:
            raise FailedRunError(f"{path}: {name}: expected shape {tuple(expected[name])}, got {tuple(tensor.shape)}")
