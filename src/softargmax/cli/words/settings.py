"""The settings of a training run, and when it ends."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

CONTEXTS = {"window": 8, "attention": 64}
"""The models, and the default of ``--context`` for each: how many tokens a prediction can depend on."""
HEADS = 4  # number of attention heads
SPAN = 16  # number of consecutive tokens that a window model predicts at once, because their contexts share embeddings


@dataclass(frozen=True)
class Settings:
    """The settings that, together with the text, determine the trained weights.

    A checkpoint can be resumed only with equal settings.
    """

    layer: str
    model: str = "window"
    dim: int = 128
    context: int = CONTEXTS["window"]
    batch: int = 1024
    lr: float = 0.002
    seed: int = 0

    @property
    def before(self) -> int:
        """The number of tokens before the first predicted token of a span (a training sequence)."""
        return self.context if self.model == "window" else 1

    @property
    def length(self) -> int:
        """The number of predicted tokens of a span (a training sequence)."""
        return SPAN if self.model == "window" else self.context

    @property
    def width(self) -> int:
        """The total number of tokens of a span (a training sequence)."""
        return self.before + self.length


@dataclass(frozen=True)
class Until:
    """The limits of training, in steps, passes over the text and seconds. Training ends at the first limit reached."""

    steps: int | None = None
    epochs: float | None = None
    seconds: float | None = None

    def share(self, step: int, per_epoch: int, seconds: float) -> float:
        """Return the fraction of the training that is done. Training ends at 1."""
        limits = ((step, self.steps), (step / per_epoch, self.epochs), (seconds, self.seconds))
        return max(done / most if most else 1.0 for done, most in limits if most is not None)


@dataclass(frozen=True)
class Job:
    """The instructions for the process that trains one layer. The text is sent separately."""

    settings: Settings
    until: Until
    checkpoint: str
    digest: str
    resume: bool = False
    save_every: float = 60.0
    evaluated: int = 1 << 14
    prompt: list[int] = field(default_factory=list)
    generate: int = 0
    top_p: float = 0.9
    without: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Job:
        """Return the job whose `as_dict` returned these values."""
        return cls(**values | {"settings": Settings(**values["settings"]), "until": Until(**values["until"])})

    def as_dict(self) -> dict[str, Any]:
        """Return the job as a dict of values for JSON."""
        return asdict(self)
