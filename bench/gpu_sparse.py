"""Time the CUDA kernels of the sparse maps, beside the entmax package and torch.

Times are medians, with an empty cache before each call. tests/triton/test_device_sparse.py checks the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPES = ((4096, 4096), (8192, 32000), (131072, 128))
DTYPES = (torch.float32, torch.bfloat16)
ALPHAS = (2.0, 1.5, 1.3)


def scores(rows: int, classes: int, dtype: torch.dtype, device: str, spread: float = 1.0) -> torch.Tensor:
    """Normal scores."""
    return (torch.randn(rows, classes, device=device) * spread).to(dtype)


def peers_of(alpha: float) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Other implementations of the map."""
    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    try:
        import entmax

        closed = {2.0: entmax.sparsemax, 1.5: entmax.entmax15}
        if alpha in closed:
            found["entmax"] = lambda z: closed[alpha](z, dim=-1)
        found["entmax_bisect"] = lambda z: entmax.entmax_bisect(z, alpha, dim=-1)
    except ImportError:
        pass
    if alpha == 2.0:
        found["torch sort"] = sorted_sparsemax
    return found


def sorted_sparsemax(z: torch.Tensor) -> torch.Tensor:
    """sparsemax by its formula with a sort, in torch operations."""
    ordered = z.float().sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1.0
    k = torch.arange(1, z.shape[-1] + 1, device=z.device)
    size = (ordered * k > sums).sum(-1, keepdim=True)
    return (z - sums.gather(-1, size - 1) / size).clamp_min(0.0).to(z.dtype)


def microseconds(call: Callable[[], Any]) -> float:
    """The median time of a call."""
    from triton.testing import do_bench

    return round(float(do_bench(call, warmup=5, rep=30, return_mode="median")) * 1e3, 1)


def both(function: Callable[[torch.Tensor], torch.Tensor], z: torch.Tensor) -> Callable[[], Any]:
    """A call with its backward pass."""
    leaf, g = z.clone().requires_grad_(), torch.randn_like(z)

    def run() -> None:
        leaf.grad = None
        function(leaf).backward(g)

    return run


def lines(device: str = "cuda", shapes: Any = SHAPES, time: Callable[..., float] = microseconds) -> Iterator[dict]:
    """Time the calls."""
    for shape in shapes:
        for dtype in DTYPES:
            z = scores(*shape, dtype, device)
            copied = torch.empty_like(z)
            target = torch.randint(0, shape[1], (len(z),), device=device)
            facts = {"shape": list(shape), "dtype": str(dtype)[6:]}
            yield {"call": "copy", **facts, "us": time(lambda z=z, copied=copied: copied.copy_(z))}
            for alpha in ALPHAS:
                ours = lambda z, alpha=alpha: sa.entmax(z, alpha)  # noqa: E731 as short as the others
                peers = peers_of(alpha)
                line = {"call": f"entmax {alpha}", **facts, "us": time(lambda z=z, ours=ours: ours(z))}
                yield line | {name: time(lambda z=z, peer=peer: peer(z)) for name, peer in peers.items()}
                line = {"call": f"entmax {alpha} and backward", **facts, "us": time(both(ours, z))}
                yield line | {name: time(both(peer, z)) for name, peer in peers.items()}
                torch.cuda.empty_cache()
            yield from loss_lines(z, target, facts, time)


def loss_lines(z: torch.Tensor, target: torch.Tensor, facts: Any, time: Callable[..., float]) -> Iterator[dict]:
    """Time the losses with their gradients."""
    try:
        import entmax

        peers = {2.0: entmax.sparsemax_loss, 1.5: entmax.entmax15_loss}
    except ImportError:
        peers = {}
    for alpha in (2.0, 1.5):
        leaf = z.clone().requires_grad_()

        def run(loss: Callable[..., Any], leaf: torch.Tensor = leaf) -> None:
            leaf.grad = None
            loss(leaf, target).sum().backward()

        ours = lambda z, y, alpha=alpha: sa.entmax_loss(z, y, alpha, reduction="sum")  # noqa: E731 as above
        line = {"call": f"entmax_loss {alpha}", **facts, "us": time(lambda z=z, ours=ours: ours(z, target))}
        yield line
        line = {"call": f"entmax_loss {alpha} and backward", **facts, "us": time(lambda run=run, ours=ours: run(ours))}
        if alpha in peers:
            line["entmax"] = time(lambda run=run, peer=peers[alpha]: run(peer))
        yield line


def prepare(worker: int, workers: int, device: str = "cuda") -> None:
    """Compile a share of the kernels. Triton keeps them on disk."""
    jobs = [(classes, dtype, alpha) for _, classes in SHAPES for dtype in DTYPES for alpha in ALPHAS]
    for classes, dtype, alpha in jobs[worker::workers]:
        z = scores(64, classes, dtype, device)
        ours = z.clone().requires_grad_()
        sa.entmax(ours, alpha).backward(z)
        sa.entmax(z, alpha)
        sa.entmax_loss(ours, z.argmax(1), alpha).backward()
        sa.entmax_loss(z, z.argmax(1), alpha)
