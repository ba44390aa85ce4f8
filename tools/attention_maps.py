"""Draw docs/tasks/sparse-attention.svg, from the variables of the page docs/tasks/sparse-attention.md.

python -m tools.attention_maps    half a minute
"""

from __future__ import annotations

import doctest
from pathlib import Path

from matplotlib.figure import Figure

PAGE = Path(__file__).parent.parent / "docs" / "tasks" / "sparse-attention.md"


def main() -> None:
    """Run the page, and draw its maps."""
    variables: dict[str, object] = {"__name__": "page"}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8")):
        exec(compile(example.source, str(PAGE), "single"), variables)  # noqa: S102 our own page
    maps, orders = variables["maps"], variables["orders"]
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    for axes, p, order in zip(figure.subplots(2, 4).flat, maps.flatten(0, 1), orders.flatten(), strict=True):  # type: ignore[attr-defined]
        axes.imshow(p.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set(title=f"order {float(order):.2f}", xticks=[], yticks=[], xlabel="keys", ylabel="queries")
    figure.savefig(PAGE.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
