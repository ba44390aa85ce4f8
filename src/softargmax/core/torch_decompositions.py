"""Our operators as torch's own, for programs that leave Python: each is its record's definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from softargmax.core.record import OPERATIONS
from softargmax.core.signature import public

if TYPE_CHECKING:
    from collections.abc import Callable


@public
def decompositions() -> dict[Any, Callable[..., Any]]:
    """What `torch.export` makes of our operators where they may not stay: torch's core aten operators.

    Returns
    -------
    dict
        `torch.export.default_decompositions()`, and for every operator of ours its definition.

    Notes
    -----
    The decomposed program needs no softargmax where it runs, in ONNX, AOTInductor or ExecuTorch. Its edge rows are
    those of the function; its last digits and its speed are those of the definition, which computes in float64. Entmax,
    that of attention too, becomes some 3000 operators, as its search has no loop there. The operators by which layers
    draw classes in training have no decomposition.

    Examples
    --------
    For an exported program it is ``program.run_decompositions(softargmax.nn.decompositions())``.

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
