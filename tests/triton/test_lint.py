"""Rules for the source of the CUDA kernels: sums of floats stand only in core/triton_state.py, in fixed order."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import softargmax

SOURCES = sorted(Path(softargmax.__file__).parent.rglob("triton_*.py"))
STATE = "triton_state.py"
ORDERED = {"sum", "cumsum", "reduce", "associative_scan", "dot"}


def sums(tree: ast.AST) -> list[ast.Call]:
    """The calls of tl.sum and of other functions that add numbers in an order that Triton chooses."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [one for one in calls if ast.unparse(one.func.value) == "tl" and one.func.attr in ORDERED]


def is_of_integers(call: ast.Call) -> bool:
    return ast.unparse(call.args[0]).endswith((".to(tl.int32)", ".to(tl.int64)"))


def wrong(source: str, name: str) -> list[str]:
    return [ast.unparse(call) for call in sums(ast.parse(source)) if name != STATE and not is_of_integers(call)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_floats_are_summed_in_the_state_file_only(path: Path) -> None:
    assert not wrong(path.read_text(), path.name)


def test_the_rule_finds_a_sum_of_floats() -> None:
    assert wrong("y = tl.sum(x, axis=1)", "triton_kernels.py")
    assert not wrong("y = tl.sum(x.to(tl.int32), axis=1)", "triton_kernels.py")


def test_each_sum_of_the_state_file_has_two_terms_or_is_of_integers() -> None:
    (state,) = [path for path in SOURCES if path.name == STATE]
    found = [call for call in sums(ast.parse(state.read_text())) if not is_of_integers(call)]
    products = [call for call in found if ast.unparse(call.func) == "tl.dot"]
    assert all("input_precision='ieee'" in ast.unparse(call) for call in products)
    halves = [call for call in found if call not in products]
    assert halves
    for call in halves:
        assert ", 2, " in ast.unparse(call.args[0]) or ", 2])" in ast.unparse(call.args[0])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_atomics_are_of_integers(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("atomic"):
            assert path.name == "triton_rows.py"
