"""How 210 travellers chose between Sydney and Melbourne: the conditional logit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.cli import render

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

MODES = {1: "air", 2: "train", 3: "bus", 4: "a car"}  # the first label in the alphabet has no constant
PUBLISHED = {"gc": -0.0155, "ttme": -0.0961, "income of air": 0.0133, "air": 5.2074, "bus": 3.1632, "train": 3.8690}
"""Greene (2003), Econometric analysis, 5th edition, table 21.11: the constants are relative to the car."""
FEATURES = {"gc": "cost of the trip", "ttme": "minutes of waiting", "income of air": "income, for air"}


def run(out: Console | None, _folder: Path) -> dict[str, Any]:
    """Fit the travel mode data of statsmodels, compare with the published coefficients, and ask what a change does."""
    try:
        from statsmodels.datasets import modechoice
    except ImportError:
        return {"ok": True, "skipped": "statsmodels is not installed"}
    from softargmax.classify import ConditionalLogit

    data = modechoice.load_pandas().data
    air = (data["mode"] == 1).to_numpy()
    X = np.column_stack([data["gc"], data["ttme"], data["hinc"] * air])
    choosers, chosen = data["individual"].to_numpy(), data["choice"].to_numpy() == 1
    names = np.array([MODES[int(mode)] for mode in data["mode"]])
    model = ConditionalLogit().fit(X, chosen, choosers, alternatives=names)
    table = model.summary()
    wanted = list(PUBLISHED.values())
    hit = float(chosen[model.predict(X, choosers, alternatives=names)].mean())
    faster = X - np.outer(air, [0.0, 15.0, 0.0])
    share, then = (float(model.predict_proba(x, choosers, alternatives=names)[air].mean()) for x in (X, faster))
    if out is not None:
        shown = render.table("", "coefficient", "standard error", "published")
        for name, coef, error, number in zip(PUBLISHED, table.coef, table.std_err, wanted, strict=True):
            shown.add_row(FEATURES.get(name, f"constant of {name}"), f"{coef:.4f}", f"{error:.4f}", f"{number:.4f}")
        out.print(shown)
        out.print(f"The most probable way is the chosen one for {hit:.0%} of the travellers (by chance 25%).")
        out.print(f"With 15 minutes less at the airport, {then:.0%} would fly, in place of {share:.0%}.")
    ok = np.abs(table.coef - wanted).max() < 5.1e-5 and hit > 0.6 and then > share
    return {
        "ok": bool(ok),
        "coefficients": dict(zip(PUBLISHED, table.coef.tolist(), strict=True)),
        "hit": hit,
        "air": share,
        "air_after": then,
    }
