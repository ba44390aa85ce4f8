"""Calls, derivatives and errors of small made-up operations, with and without kernels and derivative rules."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

import softargmax
from softargmax.core import _native
from softargmax.core.arrays import namespace
from softargmax.core.memory import NUMPY
from softargmax.core.operation import Operation, row_sum
from softargmax.core.record import Array, Axes, Dense, Integers, Rowwise, like, per_row

torch = pytest.importorskip("torch")

# torch's forward mode uses deprecated parts of torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")


class Inner(NamedTuple):
    z: Array
    gain: Rowwise
    shift: Array | None
    axes: Axes
    power: int


class Outer(NamedTuple):
    """A record (a NamedTuple of arguments) whose first array is in a nested record."""

    of: Inner
    g: Array


class Value(NamedTuple):
    value: Any


class Both(NamedTuple):
    value: Any
    size: Any


def total(z: Any, gain: Any, shift: Any, axes: tuple[int, ...], power: int) -> tuple[Any, Any]:
    """Return the row sums of gain z^power + shift, and the sizes of the rows."""
    terms = gain * z**power if shift is None else gain * z**power + shift
    return row_sum(terms, axes), row_sum(namespace(z).ones_like(z), axes)


def memory(x: Any) -> np.ndarray:
    """Return an argument of a kernel as a NumPy array."""
    return x.detach().numpy() if isinstance(x, torch.Tensor) else x


def kernel(value: Any, size: Any, shift: Any, z: Any, gain: Any, axes: Any, power: Any) -> None:
    gain = gain if isinstance(gain, float) else memory(gain)
    found = total(memory(z), gain, None if shift is None else memory(shift), tuple(axes), power)
    memory(value)[...] = found[0]
    if size is not None:
        memory(size)[...] = found[1]


def rule(i: Inner, r: Both, g: Both, wanted: Any) -> dict[str, Any]:
    found = {"z": g.value * i.gain * i.power * i.z ** (i.power - 1)}
    if "gain" in wanted:
        found["gain"] = g.value * i.z**i.power
    if "shift" in wanted:
        found["shift"] = g.value + 0 * i.z
    return found


RESULTS = Both(per_row("z"), per_row("z", spare=True))
ARGUMENTS: dict[str, Any] = {"definition": total, "kernels": {"cpu": kernel}, "constant": {"size"}}
NO_RULES = Operation("toy_no_rules", Inner, RESULTS, **ARGUMENTS)
TRANSPOSED = Operation("toy_transposed", Inner, RESULTS, vjp=rule, **ARGUMENTS)
DEFINED = Operation("toy_defined", Inner, RESULTS, definition=total)
TOYS = (NO_RULES, TRANSPOSED, DEFINED)
each = pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)


def record(z: Any, gain: Any = 2.0, shift: Any = None) -> Inner:
    return Inner(z, gain, shift, (1,), 3)


def tensors() -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 4), (3, 1), (4,)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes)


@each
def test_numpy_and_torch_have_the_same_values(toy: Any) -> None:
    z, gain, shift = (x.detach() for x in tensors())
    for i in (record(z), record(z, gain), record(z, gain, shift)):
        arrays = i._replace(**{name: x.numpy() for name, x in i._asdict().items() if isinstance(x, torch.Tensor)})
        wanted = total(*i)
        found = toy(i)
        torch.testing.assert_close(found.value, wanted[0], rtol=1e-14, atol=0)
        assert torch.equal(found.size, wanted[1])
        np.testing.assert_allclose(toy(arrays).value, wanted[0].numpy(), rtol=1e-14)
        np.testing.assert_allclose(toy.first(arrays), wanted[0].numpy(), rtol=1e-14)
        out = torch.empty(3, 1, dtype=torch.float64)
        assert toy.into(i, out) is out
        assert torch.equal(out, found.value)


@each
def test_derivatives_of_every_order_and_mode(toy: Any) -> None:
    inputs = tensors()
    f = lambda *x: toy.first(record(*x))  # noqa: E731
    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True)


@each
def test_vmap_and_compiled_graphs(toy: Any) -> None:
    z, gain, shift = (x.detach() for x in tensors())
    f = lambda z: toy.first(record(z, gain, shift))  # noqa: E731
    batch = torch.stack([z, 2 * z])
    assert torch.equal(torch.func.vmap(f)(batch), torch.stack([f(z), f(2 * z)]))
    if toy is DEFINED:
        return
    compiled = torch.compile(
        lambda *flat: toy.torch.overload(*flat, [1], None, 3)[0], fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(z, None, 2.0, None), toy.first(record(z)))


@pytest.mark.parametrize("toy", [NO_RULES, TRANSPOSED], ids=lambda toy: toy.name)
def test_opcheck(toy: Any) -> None:
    torch.library.opcheck(toy.torch.overload, toy.torch.flatten(record(*tensors())))


def test_a_record_in_a_record_reaches_its_kernel() -> None:
    calls = []

    def scaled(z: Any, g: Any, power: Any, value: Any) -> None:
        calls.append(power)
        memory(value)[...] = memory(z) * memory(g)

    toy = Operation("toy_nested", Outer, Value(like("z")), definition=lambda of, g: of.z * g, kernels={"cpu": scaled})
    z = torch.ones(3, 4, dtype=torch.float64)
    assert torch.equal(toy.first(Outer(record(z), 3 * z)), 3 * z)
    assert toy.first(Outer(record(z.numpy()), 3 * z.numpy())).tolist() == [[3.0] * 4] * 3
    assert calls == [3, 3]


def test_kernels_receive_each_kind_of_array() -> None:
    class Kinds(NamedTuple):
        z: Array
        seeds: Dense
        places: Integers

    def kinds(z: Any, seeds: Any, places: Any, value: Any) -> None:
        given = memory(places)
        received.append((memory(seeds).dtype, given.dtype, given.shape, given.flags.c_contiguous))
        memory(value)[...] = memory(z)

    received: list[Any] = []
    toy = Operation(
        "toy_kinds", Kinds, Value(like("z")), definition=lambda z: z, kernels={"cpu": kinds}, differentiable=False
    )
    z, places = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.int32)
    toy(Kinds(z, z.float().T, places.T))
    toy(Kinds(z.numpy(), z.float().numpy().T, places.numpy().T))
    assert received == [(np.float64, np.int64, (3, 2), True)] * 2


def test_a_rule_with_unknown_gradients_raises() -> None:
    toy = Operation("toy_wrong", Inner, RESULTS, vjp=lambda *_: {"z": None, "gian": None}, **ARGUMENTS)
    z = tensors()[0]
    with pytest.raises(TypeError, match=r"toy_wrong: .*gian$"):
        toy.first(record(z)).sum().backward()


def test_gradients_missing_from_a_rule_come_from_the_definition() -> None:
    toy = Operation("toy_partly", Inner, RESULTS, vjp=lambda *_: {}, **ARGUMENTS)
    by_definition = Operation("toy_defined", Inner, RESULTS, **ARGUMENTS)
    z, other = tensors()[0], tensors()[0]
    toy.first(record(z)).sum().backward()
    by_definition.first(record(other)).sum().backward()
    assert z.grad is not None
    assert torch.equal(z.grad, other.grad)


def test_wrong_records_are_refused() -> None:
    class Twice(NamedTuple):
        value: Array

    with pytest.raises(TypeError, match=r"toy: expected unique names that do not begin with _, got value"):
        Operation("toy", Twice, Value(like("value")), definition=total)

    class Strange(NamedTuple):
        z: list[int]

    with pytest.raises(TypeError, match=r"Strange\.z: expected an array, a number or a record, got list\[int\]"):
        Operation("toy", Strange, Value(like("z")), definition=total)
    with pytest.raises(
        TypeError, match=r"kernel: expected parameters among z, gain, shift, axes, power, value, size, got w"
    ):
        DEFINED.launcher(lambda w: w, NUMPY)


def test_kernels_refuse_none() -> None:
    """No kernel crashes if one of its arguments is None."""
    z, row, pair = np.ones((2, 3)), np.ones(2), (1.0, 0.0)
    where, offsets = np.ones((2, 3), bool), np.array([0, 2])
    good: dict[str, Any] = {"beta": pair, "axes": (1,), "offsets": offsets, "where": where}
    rows = {"lse", "m", "r", "low", "entropy", "mean", "divergence"}
    for name, arguments in _native.ARGUMENTS.items():
        values = [good.get(a, row if a in rows else z) for a in arguments]
        for place in range(len(values)):
            try:
                getattr(_native, name)(*values[:place], None, *values[place + 1 :])
            except (TypeError, ValueError):
                continue


# --- torch: first calls and saved programs in new processes, changes in place, tangents -------------------------------


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_threads_that_make_the_first_torch_call_at_once() -> None:
    run("""
import sys, threading, torch
from softargmax import softmax
sys.setswitchinterval(1e-6)
failed, barrier = [], threading.Barrier(16)
def call():
    barrier.wait()
    try: softmax(torch.ones(3))
    except Exception as error: failed.append(error)
threads = [threading.Thread(target=call) for _ in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
assert not failed, failed
""")


@pytest.mark.slow
def test_a_saved_program_finds_its_operators(tmp_path: Any) -> None:
    path = str(tmp_path / "program.pt2")
    run(f"""
import softargmax, torch
class Model(torch.nn.Module):
    def forward(self, z): return softargmax.softmax(z, temperature=2.0)
torch.export.save(torch.export.export(Model(), (torch.ones(3),)), {path!r})
""")
    run(f"import torch, softargmax; softargmax.softmax; print(torch.export.load({path!r}).module()(torch.ones(3)))")


def test_results_can_be_changed_in_place() -> None:
    z = tensors()[0]
    for operation in (softargmax.entropy, softargmax.soft_argmax, lambda z: softargmax.kl_divergence(z, 2 * z)):
        found = operation(z)
        found.mul_(2.0)
        found.sum().backward()
    (gradient,) = torch.autograd.grad(softargmax.softmax(z)[:, 0].sum(), z, create_graph=True)
    gradient.mul_(2.0).sum().backward()


def test_every_path_that_writes_increments_the_version() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    z = tensors()[0].detach()
    negative = torch._neg_view(z)
    out = torch.empty_like(z)
    softargmax.softmax(negative, out=out)
    assert out._version == 1
    with FlopCounterMode(display=False):
        softargmax.softmax(z, out=out)
    assert out._version == 2


def test_tangents_of_empty_and_infinite_segments() -> None:
    z = torch.tensor([1.0, torch.inf, 2.0], dtype=torch.float64)
    temperature, one = torch.ones((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    for operation in (softargmax.segment_logsumexp, softargmax.segment_softmax, softargmax.segment_log_softmax):
        f = lambda t: operation(z, [0, 0, 2, 3], temperature=t)  # noqa: B023, E731
        assert not torch.func.jvp(f, (temperature,), (one,))[1].isnan().any()
