"""What the operations of this room take."""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core.record import Array, Axes, Beta, Dense, DType, Integers, Leading


class LossOptions(NamedTuple):
    """What stands beside scores, whatever makes them; arrays broadcast with the scores, but for the classes."""

    target: Integers | None
    """A class per row, of the rows' shape; or None, and `probabilities` of the scores' shape."""
    probabilities: Array | None
    weight: Array | None
    where: Array | None
    beta: Beta
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    """0: none."""

    @property
    def one_class(self) -> bool:
        """Whether a row's target is one class: then one m is not 0, and sums of m are exact."""
        return self.target is not None and not self.label_smoothing


class Layer(NamedTuple):
    """A last layer: h (N, D), w (K, D), bias (K,) or None; dtypes may differ."""

    h: Array
    w: Array
    bias: Array | None


class CrossEntropy(NamedTuple):
    """Scores with their classes along one axis, and what is asked for; `dtype` is that of the loss."""

    z: Array
    asked: LossOptions
    axes: Axes
    kept: Leading
    """The loss is summed over all dimensions of the rows behind these."""
    mean: bool
    """Whether that is divided by what these rows count together."""
    dtype: DType


class CrossEntropyVjp(NamedTuple):
    """gz = g d loss / d z. Probabilities of `least` and below may be taken as 0."""

    of: CrossEntropy
    states: Dense | None
    g: Dense
    least: float


class GradientOf(NamedTuple):
    """As CrossEntropy, with g times the gradient in one pass; without g it is 1."""

    of: CrossEntropy
    g: Dense | None
    least: float


class Divergence(NamedTuple):
    """Scores of a student and of its teacher; `kind`: "forward", "reverse" or "js"; `softcap` 0: none."""

    student: Array
    teacher: Array
    where: Array | None
    beta: Beta
    axes: Axes
    kind: str
    softcap: float


class LinearCrossEntropy(NamedTuple):
    """A layer and what is asked for of its scores (N, K); `dtype` is that of the loss."""

    layer: Layer
    asked: LossOptions
    kept: Leading
    """1: a loss for each row; 0: their sum."""
    mean: bool
    """Whether that is divided by what the rows count together."""
    least: float
    """Probabilities of this and below may be taken as 0 in gradients."""
    forms: str
    """Which gradients are formed beside the loss, while the scores are there: of "h", "w", "b"."""
    sums: DType
    """In which dtype they are added up."""
    dtype: DType


class LinearVjp(NamedTuple):
    """g times the gradients of the loss to what `to` names."""

    of: LinearCrossEntropy
    g: Dense
    to: str


class LinearTerms(NamedTuple):
    """As LinearCrossEntropy, of every row."""

    layer: Layer
    asked: LossOptions
    sums: DType


class LinearTermsVjp(NamedTuple):
    """The gradients of <g, terms> to what `to` names."""

    of: LinearTerms
    g_loss: Dense | None
    g_lse: Dense | None
    g_entropy: Dense | None
    g_z: Dense | None
    to: str


class LinearDivergence(NamedTuple):
    """As Divergence, of scores that two layers make."""

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
"""What a gradient is multiplied by: a number, or one per row with an axis of 1 in the classes' place."""
