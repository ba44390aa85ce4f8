"""Arguments of the loss operations."""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core.record import Array, Axes, Beta, Dense, DType, Integers, Leading


class LossOptions(NamedTuple):
    """The options of a loss. Arrays broadcast with the scores, except `target`."""

    target: Integers | None
    """One class per row. If None, the target is `probabilities`, which has the shape of the scores."""
    probabilities: Array | None
    weight: Array | None
    where: Array | None
    beta: Beta
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    """0 means no soft-cap."""
    named: str = "target"
    """What the public function calls `target`, for errors."""

    @property
    def one_class(self) -> bool:
        """True if the target of each row is one class, without label smoothing.

        At most one m_k of a row (see reference.py) is then not 0, so the sum of m_k over the classes is exact.
        """
        return self.target is not None and not self.label_smoothing


class Layer(NamedTuple):
    """A last layer: h (N, D), w (K, D), and bias (K,) or None. Their dtypes may differ."""

    h: Array
    w: Array
    bias: Array | None


class CrossEntropy(NamedTuple):
    """Scores with classes along one axis, and the options. `dtype` is the dtype of the loss."""

    z: Array
    options: LossOptions
    axes: Axes
    kept: Leading
    """How many axes the loss keeps: the first `kept` axes of z, not counting the class axis. All others are summed."""
    mean: bool
    """If True, each sum is divided by the total weight of its rows."""
    dtype: DType


class CrossEntropyVjp(NamedTuple):
    """Arguments of the gradient gz = g d loss / d z. Probabilities of at most `least` / K may count as 0."""

    of: CrossEntropy
    states: Dense | None
    g: Dense
    least: float


class GradientOf(NamedTuple):
    """Arguments for computing the loss and g times its gradient in one pass. If g is None, it counts as 1."""

    of: CrossEntropy
    g: Dense | None
    least: float


class Divergence(NamedTuple):
    """Scores of a student and a teacher. `kind` is "forward", "reverse" or "js". A `softcap` of 0 means no soft-cap."""

    student: Array
    teacher: Array
    where: Array | None
    beta: Beta
    axes: Axes
    kind: str
    softcap: float


class LinearCrossEntropy(NamedTuple):
    """A layer, and the options for its scores (N, K). `dtype` is the dtype of the loss."""

    layer: Layer
    options: LossOptions
    kept: Leading
    """1 to return one loss per row, 0 to return their sum or mean."""
    mean: bool
    """If True, the sum is divided by the total weight of the rows."""
    least: float
    """Probabilities of at most this number, divided by the number of classes, may count as 0 in gradients."""
    forms: str
    """The gradients to compute together with the loss: a subset of "hwb", for h, w and bias."""
    sums: DType
    """The dtype in which gradients are summed."""
    dtype: DType
    spread: str | None = None
    """How the classes are spread over processes (core/processes.py), or None. h is the same in all of them."""
    by_rows: bool = False
    """If True, the rows are spread in place of the classes. w and bias are the same in all processes, and so are their
    gradients, which are sums over all rows. So are a sum or mean of the losses."""


class LinearVjp(NamedTuple):
    """Arguments for g times the gradients of the loss.

    `to` is a subset of "hwb": the letters of the arrays with respect to which the loss is differentiated.
    """

    of: LinearCrossEntropy
    g: Dense
    to: str


class LinearTerms(NamedTuple):
    """A layer, and the options for its scores (N, K). `sums` is the dtype in which gradients are summed."""

    layer: Layer
    options: LossOptions
    sums: DType


class LinearTermsVjp(NamedTuple):
    """Arguments for the gradients of the terms of the loss, with incoming gradients g. `to` is a subset of "hwb"."""

    of: LinearTerms
    g_loss: Dense | None
    g_lse: Dense | None
    g_entropy: Dense | None
    g_z: Dense | None
    to: str


class LinearDivergence(NamedTuple):
    """The layers of a student and a teacher, and the options of Divergence."""

    h_student: Array
    w_student: Array
    bias_student: Array | None
    h_teacher: Array
    w_teacher: Array
    bias_teacher: Array | None
    where: Array | None
    beta: Beta
    kind: str
    softcap: float


Factor = Any
"""The factor of a gradient: a number, or an array with one number per row and a class axis of size 1."""
