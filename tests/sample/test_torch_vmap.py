"""Under torch.vmap, a call with a seed has the noise of an ordinary call. Without a seed, `randomness` decides."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softargmax as sa  # noqa: E402


def scores(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mapped_calls() -> list[tuple[Any, tuple[Any, ...]]]:
    z, streams = scores(3, 2, 9), torch.tensor([[1, 2], [2**40, 3], [5, -1]])
    k, t, masks = torch.tensor([2, 5, 9]), torch.tensor([0.0, 1.0, torch.inf]), scores(3, 9, seed=2) > -0.8
    return [
        (lambda z: sa.categorical(z, seed=4), (z,)),
        (lambda z: tuple(sa.categorical_with_logprob(z, seed=4, num_samples=3, replace=False)), (z,)),
        (
            lambda z, i, k, t, w: sa.categorical(z, seed=4, stream=i, top_k=k, temperature=t, where=w),
            (z, streams, k, t, masks),
        ),
        (lambda i: sa.categorical(z[0], seed=4, stream=i, num_samples=5), (streams,)),
        (lambda z, k: sa.filter_scores(z, top_k=k, top_p=0.9), (z, k)),
        (lambda z: sa.topk_softmax(z, 3, axis=0), (z.transpose(1, 2),)),
        (lambda z: sa.gumbel_softmax(z, seed=4, axis=0), (z,)),
        (lambda z, i: sa.gumbel_softmax(z, seed=4, stream=i, hard=True), (z, streams)),
        (lambda i: sa.gumbel_softmax(z[0], seed=4, stream=i), (streams,)),
        (lambda z: sa.boltzmann_policy(z, temperature=0.5, epsilon=0.1), (z,)),
        (lambda z, g: tuple(sa.speculative_sample(z, z[:1], g, seed=4)), (z, torch.tensor([[0], [1], [8]]))),
        (torch.vmap(lambda x: sa.categorical(x, seed=4)), (z,)),
        (torch.func.jacrev(lambda x: sa.topk_softmax(x, 3)), (z,)),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(13))
def test_a_mapped_call_is_a_loop(number: int) -> None:
    """A call under vmap has the same noise as the same call without vmap."""
    function, arguments = mapped_calls()[number]
    found, alone = torch.vmap(function)(*arguments), [function(*each) for each in zip(*arguments, strict=True)]
    if isinstance(found, torch.Tensor):
        found, alone = (found,), [(x,) for x in alone]
    for part, parts in zip(found, zip(*alone, strict=True), strict=True):
        assert torch.equal(part, torch.stack(parts))


@pytest.mark.parametrize("name", ["categorical", "gumbel_softmax", "gumbel"])
def test_randomness_of_mapped_calls(name: str) -> None:
    """randomness= works as for torch's own functions: "same", "different", and an error by default."""
    z = torch.zeros(3, 5000)
    draw = {"gumbel": lambda z: sa.gumbel(z.shape, like=z)}.get(name, getattr(sa, name))
    same, different = (torch.vmap(draw, randomness=r)(z) for r in ("same", "different"))
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(draw)(z)
