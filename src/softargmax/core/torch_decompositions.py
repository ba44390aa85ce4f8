"""Decompositions of the library's operators for exported programs: the definitions of the operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from softargmax.core.record import OPERATIONS
from softargmax.core.signature import public

if TYPE_CHECKING:
    from collections.abc import Callable


@public
def decompositions() -> dict[Any, Callable[..., Any]]:
    """A table for `torch.export` that decomposes the library's operators into torch's core ATen operators.

    Returns
    -------
    dict
        `torch.export.default_decompositions()`, extended by the definition of each operator of the library.

    Notes
    -----
    The decomposed program runs without softargmax, in ONNX, AOTInductor or ExecuTorch. It has the same results for edge
    rows as the functions. Its last digits and its speed are those of the definitions, which compute in float64.
    Entmax, also inside attention, becomes about 3000 operators, because its search is unrolled. The operators by which
    layers draw classes during training have no decomposition.

    Examples
    --------
    Decompose an exported program by ``program.run_decompositions(softargmax.nn.decompositions())``.

    >>> import torch, softargmax
    >>> p = softargmax.nn.Softmax()(torch.zeros(1, 3))
    >>> torch.ops.softargmax.softmax.default in softargmax.nn.decompositions()
    True
    """
    table: dict[Any, Callable[..., Any]] = torch.export.default_decompositions()
    for operation in OPERATIONS:
        if operation.kernels:
            table[operation.torch.overload] = operation.torch.decomposed
    return table
