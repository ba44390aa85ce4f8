"""More digest cases of softargmax/output: layers for large vocabularies, their losses, gradients and other methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tests.digests.cases import Case, gradients, titled, variant
from tests.digests.inputs import TORCH, World, below, scores

from softargmax import nn
from softargmax.output import Learned, LogUniform, Negatives, Tree, Uniform, Unigram

DIM, CLASSES, ROWS = 12, 41, 11
COUNTS = 1 + below(1000, CLASSES, salt="counts")
Make = Callable[[], nn.OutputLayer]


def made(dtype: Any) -> dict[str, Make]:
    """Return functions that make the layers, by name and options."""
    d: dict[str, Any] = {"dtype": dtype}
    zipf, noise, tree = LogUniform(CLASSES), Unigram(COUNTS), Tree.huffman(COUNTS)
    many: dict[str, Make] = {
        "FullSoftmax": lambda: nn.FullSoftmax(DIM, CLASSES, **d),
        "FullSoftmax: no bias": lambda: nn.FullSoftmax(DIM, CLASSES, bias=False, **d),
        "HierarchicalSoftmax": lambda: nn.HierarchicalSoftmax(DIM, tree, **d),
        "HierarchicalSoftmax: balanced, no bias": lambda: nn.HierarchicalSoftmax(
            DIM, Tree.balanced(CLASSES), bias=False, **d
        ),
        "HierarchicalSoftmax: sparse": lambda: nn.HierarchicalSoftmax(DIM, tree, sparse=True, **d),
        "AdaptiveSoftmax": lambda: nn.AdaptiveSoftmax(DIM, CLASSES, [5, 17], **d),
        "AdaptiveSoftmax: biases": lambda: nn.AdaptiveSoftmax(
            DIM, CLASSES, [9, 20], div_value=2.0, head_bias=True, tail_bias=True, **d
        ),
        "AdaptiveSoftmax: no clusters": lambda: nn.AdaptiveSoftmax(DIM, CLASSES, [], **d),
        "AdaptiveSoftmax: from_counts": lambda: nn.AdaptiveSoftmax.from_counts(DIM, COUNTS, clusters=2, **d),
        "DifferentiatedSoftmax": lambda: nn.DifferentiatedSoftmax(DIM, [11, 20, 10], [6, 4, 2], **d),
        "DifferentiatedSoftmax: no bias": lambda: nn.DifferentiatedSoftmax(DIM, [1, 40], [4, 8], bias=False, **d),
        "DifferentiatedSoftmax: from_counts": lambda: nn.DifferentiatedSoftmax.from_counts(DIM, COUNTS, blocks=3, **d),
        "TargetSampledSoftmax": lambda: nn.TargetSampledSoftmax(DIM, CLASSES, **d),
        "TargetSampledSoftmax: sparse, no bias": lambda: nn.TargetSampledSoftmax(
            DIM, CLASSES, sparse=True, bias=False, **d
        ),
    }
    for label, more in {
        "": {},
        "alone": {"shared": False},
        "sparse": {"sparse": True},
        "no bias": {"bias": False},
        "seed": {"seed": 5},
        "alone, sparse": {"shared": False, "sparse": True},
    }.items():
        given: dict[str, Any] = {"samples": 7, "seed": 3, **d, **more}
        for unique in (False, True):
            own = f"{label}{', ' if label and unique else ''}{'unique' if unique else ''}"
            both = {**given, "unique": unique}
            many[titled("SampledSoftmax", own)] = lambda both=both: nn.SampledSoftmax(DIM, zipf, **both)
            many[titled("NCE", own)] = lambda both=both: nn.NCE(DIM, noise, **both)
            many[titled("NegativeSampling", own)] = lambda both=both: nn.NegativeSampling(DIM, noise, **both)
        many[titled("ImportanceSampledSoftmax", label)] = lambda given=given: nn.ImportanceSampledSoftmax(
            DIM, zipf, **given
        )
    some: dict[str, Any] = {"samples": 7, "seed": 3, **d}
    many["SampledSoftmax: learned"] = lambda: nn.SampledSoftmax(DIM, Learned(CLASSES), **some)
    many["SampledSoftmax: in_batch"] = lambda: nn.SampledSoftmax(DIM, zipf, in_batch=noise, **some)
    many["SampledSoftmax: in_batch learned"] = lambda: nn.SampledSoftmax(DIM, zipf, in_batch=Learned(CLASSES), **some)
    many["ImportanceSampledSoftmax: least_ess"] = lambda: nn.ImportanceSampledSoftmax(
        DIM, zipf, least_ess=20.0, most=56, **some
    )
    many["NCE: log_z"] = lambda: nn.NCE(DIM, noise, log_z=1.5, **some)
    many["NCE: learned"] = lambda: nn.NCE(DIM, noise, log_z="learned", **some)
    many["NCE: context"] = lambda: nn.NCE(DIM, Uniform(CLASSES), log_z="context", shared=False, **some)
    many["NegativeSampling: shared"] = lambda: nn.NegativeSampling(DIM, noise, shared=True, **some)
    return many


def filled(make: Make, **own: Any) -> nn.OutputLayer:
    """Return a layer with fixed parameters."""
    layer = make()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            numbers = scores(*parameter.shape, salt=name, size=0.7)
            parameter.copy_(torch.tensor(numbers).to(parameter.dtype))
    for name, value in own.items():
        setattr(layer, name, value)
    return layer


def stepped(layer: nn.OutputLayer, hidden: Any, target: Any, *extra: Any, steps: int = 2) -> Any:
    """Return the losses and gradients of some steps, the loss without gradients, and the final state of the layer."""
    found = []
    for _ in range(steps):
        leaf = hidden.clone().requires_grad_()
        loss = layer(leaf, target, *extra)
        found.append((loss, gradients(loss, [leaf, *layer.parameters()])))
    with torch.no_grad():
        without = layer(hidden, target, *extra)
    extra = {name: getattr(layer, name) for name in ("ess", "drawn") if hasattr(layer, name)}
    return found, without, dict(layer.state_dict()), extra


def other_methods(layer: nn.OutputLayer, hidden: Any, target: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and calls of the layer's methods other than `forward`."""

    def gradient(method: Callable[..., Any], *extra: Any) -> Any:
        leaf = hidden.clone().requires_grad_()
        found = method(leaf, *extra)
        return found, gradients(found, [leaf, *layer.parameters()])

    def quietly(method: Callable[..., Any], *extra: Any) -> Any:
        with torch.no_grad():
            return method(hidden, *extra)

    yield "log_prob", lambda: gradient(layer.log_prob)
    yield "log_prob without", lambda: quietly(layer.log_prob)
    yield "log_prob_of", lambda: gradient(layer.log_prob_of, target)
    yield "log_prob_of without", lambda: quietly(layer.log_prob_of, target)
    for k in (1, 5, layer.classes):
        yield f"topk {k}", lambda k=k: layer.topk(hidden, k)
    for seed in (0, 7):
        yield f"sample {seed}", lambda seed=seed: layer.sample(hidden, seed)
    yield "sample stream", lambda: layer.sample(hidden, 7, stream=torch.arange(len(hidden)) * 3 + 1)
    if hasattr(layer, "scores"):
        yield "scores", lambda: gradient(layer.scores)
    if hasattr(layer, "log_score_of"):
        yield "log_score_of", lambda: gradient(layer.log_score_of, target)


def second(layer: nn.OutputLayer, hidden: Any, target: Any) -> Any:
    """Return the second derivatives of a layer's loss."""
    leaf = hidden.clone().requires_grad_()
    leaves = [leaf, *layer.parameters()]
    first = gradients(layer(leaf, target), leaves, create_graph=True)
    return gradients([x for x in first if x is not None and x.requires_grad and not x.is_sparse], leaves)


def layers() -> Iterator[Case]:
    """Yield the cases of all layers.

    All dtypes have one case of training steps for each layer. bfloat16 and float32 also have a case for each reduction
    and a case with ignored rows. float32 also has the cases of `more`.
    """
    for w in TORCH:
        hidden, target = w.array(scores(ROWS, DIM, size=1.5)), w.plain(below(CLASSES, ROWS))
        some = target.clone()
        some[[1, 4]] = -100
        for name, make in made(w.float).items():
            yield Case(name, variant(w), lambda m=make, h=hidden, t=target: stepped(filled(m), h, t))
            if w.dtype in {"float64", "float16"}:
                continue
            for reduction in ("sum", "none"):
                reduced = partial(filled, make, reduction=reduction)
                yield Case(name, variant(w, reduction), lambda m=reduced, h=hidden, t=some: stepped(m(), h, t))
            yield Case(name, variant(w, "some ignored"),
                       lambda m=make, h=hidden, t=some: stepped(filled(m), h, t))  # fmt: skip
            if w.dtype != "float32":
                continue
            yield from more(name, make, w)


def more(name: str, make: Make, w: World) -> Iterator[Case]:
    """Yield the cases that only float32 has."""
    hidden, target = w.array(scores(ROWS, DIM, size=1.5)), w.plain(below(CLASSES, ROWS))
    trained_alike = name.startswith("NegativeSampling:") or any(
        x in name for x in ("alone", "unique", "seed", "sparse")
    )
    for method, run in () if trained_alike else other_methods(filled(make), hidden, target):
        yield Case(name, variant(w, method), run)
    yield Case(name, variant(w, "second"), lambda: second(filled(make), hidden, target))
    three, its = w.array(scores(2, 3, DIM, size=1.5)), w.plain(below(CLASSES, 2, 3))
    yield Case(name, variant(w, "three axes"), lambda: stepped(filled(make), three, its, steps=1))
    none = w.plain(below(1, ROWS) - 100)
    yield Case(name, variant(w, "all ignored"), lambda: stepped(filled(make), hidden, none, steps=1))
    wrong = w.plain(below(1, ROWS) + CLASSES)
    yield Case(name, variant(w, "no such class"), lambda: stepped(filled(make), hidden, wrong, steps=1))
    halves = TORCH[2].array(scores(ROWS, DIM, size=1.5))
    yield Case(name, variant(w, "half hidden"), lambda: stepped(filled(make), halves, target, steps=1))
    many, their = w.array(scores(300, DIM, size=1.5)), w.plain(below(CLASSES, 300))
    yield Case(name, variant(w, "300 rows"), lambda: stepped(filled(make), many, their, steps=1))
    far = w.array(scores(ROWS, DIM, size=90.0))
    yield Case(name, variant(w, "far"), lambda: stepped(filled(make), far, target, steps=1))
    frozen = {n for n, _ in filled(make).named_parameters()} if "bias" not in name else set()
    for parameter in sorted(frozen):

        def partly(parameter: str = parameter) -> Any:
            layer = filled(make)
            dict(layer.named_parameters())[parameter].requires_grad_(requires_grad=False)
            leaf = hidden.clone().requires_grad_()
            loss = layer(leaf, target)
            return loss, gradients(loss, [leaf, *(p for p in layer.parameters() if p.requires_grad)])

        if name in {"FullSoftmax", "HierarchicalSoftmax", "AdaptiveSoftmax", "DifferentiatedSoftmax", "NCE"}:
            yield Case(name, variant(w, f"{parameter} frozen"), partly)


def given() -> Iterator[Case]:
    """Yield cases with negatives and candidates from the caller, with a tied weight, and with 3001 classes."""
    w = TORCH[0]
    hidden, target = w.array(scores(ROWS, DIM, size=1.5)), w.plain(below(CLASSES, ROWS))
    one = Negatives(w.plain(below(CLASSES, 6, salt="n")), w.array(scores(6, salt="e", size=1.0)))
    each = Negatives(w.plain(below(CLASSES, ROWS, 6, salt="n")), w.array(scores(ROWS, 6, salt="e", size=1.0)))
    for name in ("SampledSoftmax", "ImportanceSampledSoftmax", "NCE", "NegativeSampling"):
        make = made(w.float)[name]
        for label, negatives in (("negatives", one), ("negatives of each", each)):
            yield Case(titled(name, label), variant(w),
                       lambda m=make, n=negatives: stepped(filled(m), hidden, target, n))  # fmt: skip

    def used(classes: Any) -> Any:
        layer: Any = filled(made(w.float)["TargetSampledSoftmax"])
        layer.use(classes)
        return stepped(layer, hidden, target)

    yield Case("TargetSampledSoftmax: use", variant(w), lambda: used(list(range(CLASSES))))
    yield Case("TargetSampledSoftmax: use some", variant(w), lambda: used(target.tolist()))

    def tied() -> Any:
        weight = torch.nn.Parameter(w.array(scores(CLASSES, DIM, salt="tied", size=0.5)))
        layer = nn.FullSoftmax(DIM, CLASSES, weight=weight, bias=False)
        leaf = weight[target]
        loss = layer(leaf, target)
        return loss, gradients(loss, [weight])

    yield Case("FullSoftmax: tied", variant(w), tied)
    wide = w.array(scores(7, 65, size=1.0)), w.plain(below(3001, 7))
    for name, layer in {
        "FullSoftmax": lambda: nn.FullSoftmax(65, 3001),
        "HierarchicalSoftmax": lambda: nn.HierarchicalSoftmax(65, Tree.balanced(3001)),
        "AdaptiveSoftmax": lambda: nn.AdaptiveSoftmax(65, 3001, [50, 500]),
        "DifferentiatedSoftmax": lambda: nn.DifferentiatedSoftmax(65, [1, 500, 2500], [40, 16, 9]),
        "NCE": lambda: nn.NCE(65, LogUniform(3001), samples=200),
        "NegativeSampling": lambda: nn.NegativeSampling(65, LogUniform(3001), samples=50),
        "SampledSoftmax": lambda: nn.SampledSoftmax(65, LogUniform(3001), samples=200),
    }.items():
        yield Case(titled(name, "3001 classes"), variant(w), lambda m=layer: stepped(filled(m), *wide, steps=1))
        yield Case(titled(name, "3001 classes, topk, sample"), variant(w),
                   lambda m=layer: (filled(m).topk(wide[0], 9), filled(m).sample(wide[0], 3)))  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for part in (layers, given):
        yield from part()
