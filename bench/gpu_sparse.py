"""Check and time the CUDA kernels of the sparse maps, beside the entmax package and torch.

    python -m bench.gpu_sparse           1 minute on a GPU

Results are compared with the definitions in float64. Times are medians, with an empty cache before each call.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import torch

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPES = ((4096, 4096), (8192, 32000), (131072, 128))
DTYPES = (torch.float32, torch.bfloat16)
ALPHAS = (2.0, 1.5, 1.3)
CHECKED = ((64, 1), (64, 5), (33, 128), (16, 1000), (8, 4096), (6, 10000), (4, 16384), (3, 20000), (2, 131072))


def scores(rows: int, classes: int, dtype: torch.dtype, device: str, spread: float = 1.0) -> torch.Tensor:
    """Normal scores."""
    return (torch.randn(rows, classes, device=device) * spread).to(dtype)


def truth(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a definition in float64."""
    with sa.using("reference"):
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in arguments]
        return function(*wide)


def expect(ok: torch.Tensor | bool, *facts: Any) -> None:
    """Raise an AssertionError with some facts if a condition does not hold."""
    if not bool(torch.as_tensor(ok).all()):
        raise AssertionError(" ".join(map(str, facts)))


def check(device: str = "cuda", shapes: Any = CHECKED) -> None:
    """Compare results with the definitions, and bits over batches, strides and runs."""
    torch.manual_seed(0)
    for rows, classes in shapes:
        for dtype in DTYPES:
            for alpha in ALPHAS:
                for spread in (0.01, 1.0, 20.0):
                    z = scores(rows, classes, dtype, device, spread)
                    check_map(z, alpha)
                    check_loss(z, alpha)
                check_bits(scores(rows, classes, dtype, device), alpha)
    check_edges(device)


def check_map(z: torch.Tensor, alpha: float) -> None:
    """p, tau, the support and the gradient."""
    facts = tuple(z.shape), z.dtype, alpha
    p, (tau, support) = truth(sa.entmax, z, alpha), truth(sa.threshold, z, alpha)
    ours, g = z.clone().requires_grad_(), torch.randn_like(z)
    found, roots = sa.entmax(ours, alpha), sa.threshold(z, alpha)
    unit = 2.0**-24 if z.dtype == torch.float32 else 2.0**-8
    off = (found.double() - p).abs().amax(1) / p.amax(1)
    expect(off <= 1e-6 + unit, "p", *facts, off.max().item())
    off = (roots.tau - tau).abs() / (1 + tau.abs())
    expect(off <= 1e-6, "tau", *facts, off.max().item())
    near = ((p > 0) & (p < 1e-12 * p.amax(1, keepdim=True))).sum(1)
    expect((roots.support_size - support).abs() <= near, "support", *facts)
    found.backward(g)
    s = torch.where(found > 0, found.detach().double() ** (2 - alpha), 0.0)
    s = torch.where(found.detach() > 0, s, 0.0)
    expected = s * (g.double() - (s * g.double()).sum(1, keepdim=True) / s.sum(1, keepdim=True))
    off = (ours.grad.double() - expected).abs().amax(1) / (s.amax(1) * g.double().abs().amax(1))
    expect(off <= 2e-6 + unit, "gradient", *facts, off.max().item())


def check_loss(z: torch.Tensor, alpha: float) -> None:
    """The loss of classes, and its gradient."""
    facts = tuple(z.shape), z.dtype, alpha
    target = torch.randint(0, z.shape[1], (len(z),), device=z.device)
    target[::2] = z[::2].argmax(1)
    expected = truth(lambda z: sa.entmax_loss(z, target, alpha, reduction="none"), z)
    ours = z.clone().requires_grad_()
    found = sa.entmax_loss(ours, target, alpha, reduction="none")
    found.sum().backward()
    off = (found - expected).abs() / (1e-2 + expected)
    expect(off <= 4e-6, "loss", *facts, off.max().item())
    slope = truth(sa.entmax, z, alpha)
    slope[torch.arange(len(z), device=z.device), target] -= 1.0
    unit = 2.0**-24 if z.dtype == torch.float32 else 2.0**-8
    expect((ours.grad.double() - slope).abs() <= 1e-6 + unit, "gradient of the loss", *facts)


def check_bits(z: torch.Tensor, alpha: float) -> None:
    """The bits of rows in other batches, with other strides, and in a second run."""
    p, facts = sa.entmax(z, alpha), (tuple(z.shape), z.dtype, alpha)
    expect(torch.equal(p, sa.entmax(z, alpha)), "bits of a second run", *facts)
    expect(torch.equal(p, torch.cat([sa.entmax(z[at : at + 3], alpha) for at in range(0, len(z), 3)])), "batch", *facts)
    expect(torch.equal(p, sa.entmax(z.T.contiguous(), alpha, axis=0).T), "bits of other strides", *facts)


def check_edges(device: str) -> None:
    """Rows with NaN and infinities, masks and temperatures."""
    inf, nan = float("inf"), float("nan")
    for classes in (6, 20000):
        z = torch.randn(6, classes, device=device)
        z[0, 5], z[1, 0], z[2], z[3, 0], z[4, 2], z[5, 2], z[5, 3] = inf, nan, -inf, -inf, inf, inf, nan
        where = torch.ones(6, classes, dtype=torch.bool, device=device)
        where[0, ::2] = where[5, 3] = False
        temperature = torch.tensor([[1.0], [2.0], [0.0], [0.5], [-3.0], [inf]], device=device)
        for alpha in ALPHAS:
            for options in ({}, {"where": where}, {"temperature": 0.0}, {"temperature": -2.0},
                            {"temperature": temperature, "where": where}):  # fmt: skip
                found = sa.entmax(z, alpha, **options)
                with sa.using("reference"):
                    expected = sa.entmax(z.double(), alpha, **options)
                close = torch.isclose(found.double(), expected, rtol=2e-6, atol=1e-7, equal_nan=True)
                expect(close, "edges", classes, alpha, list(options))


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
    sizes = sorted({classes for _, classes in (*SHAPES, *CHECKED)})
    jobs = [(classes, dtype, alpha) for classes in sizes for dtype in DTYPES for alpha in ALPHAS]
    for classes, dtype, alpha in jobs[worker::workers]:
        rows = {n: rows for rows, n in (*CHECKED, *SHAPES)}[classes]
        for count in {min(rows, 4096), *(n for n, k in CHECKED if k == classes), 3, 2, 1}:
            z = scores(count, classes, dtype, device)
            ours = z.clone().requires_grad_()
            sa.entmax(ours, alpha).backward(z)
            sa.entmax(z, alpha)
            sa.threshold(z, alpha)
            sa.entmax_loss(ours, z.argmax(1), alpha).backward()
            sa.entmax_loss(z, z.argmax(1), alpha)
        sa.entmax(z.T.contiguous(), alpha, axis=0)


def main() -> None:
    """Check, and print the times."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    check()
    for line in lines():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
