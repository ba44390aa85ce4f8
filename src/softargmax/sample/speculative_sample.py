"""Speculative sampling: a large model verifies tokens that a small model guessed."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import INTEGERS, as_number, device_of, dtype_name, like, namespace, row_dtype
from softargmax.core.scale import UNIT
from softargmax.core.seeds import flipped
from softargmax.core.signature import public
from softargmax.core.types import Generator, Integers, Logits, PerRow, Seed
from softargmax.normalize import softmax
from softargmax.sample import operations, reference
from softargmax.sample.arguments import Distribution
from softargmax.sample.categorical import filter_scores
from softargmax.sample.check_options import ORDERS, rows_of, source_of
from softargmax.sample.operations import Categorical
from softargmax.sample.results import SpeculativeSample

_KEY_CHANGE = 0x1E3779B97F4A7C15  # changes the seed, so that `categorical` with the caller's seed has other noise


@public
@np.errstate(divide="ignore")
def speculative_sample(  # noqa: PLR0913 options are keywords
    target: Logits,
    draft: Logits,
    tokens: Integers,
    /,
    *,
    temperature: PerRow = 1.0,
    top_k: PerRow | None = None,
    top_p: PerRow | None = None,
    min_p: PerRow | None = None,
    seed: Seed | None = None,
    stream: Integers | None = None,
    generator: Generator | None = None,
    order: str = ORDERS[0],
) -> SpeculativeSample:
    r"""Verify a chain of guessed tokens. The returned tokens have the distribution of the target model.

    .. math:: \text{accept } x \text{ with } \min\!\left(1, \frac{p_x}{q_x}\right), \qquad
              \text{else draw from } \frac{(p - q)_+}{\sum (p - q)_+}

    Parameters
    ----------
    target : array_like
        The large model's scores, shape (..., L + 1, K): one row after the context, and one after each guess.
    draft : array_like
        The small model's scores, shape (..., L, K). The guesses were drawn from these scores with the same options.
    tokens : array_like of int
        The guesses, shape (..., L).
    temperature, top_k, top_p, min_p, order
        As in `categorical`, for both models. Arrays have shape (...), one number per sequence.
    seed, stream, generator
        As in `categorical`, but with one stream per sequence. The guesses may have been drawn with the same seed.

    Returns
    -------
    SpeculativeSample
        tokens (..., L + 1): the accepted guesses, one more token, then -1. accepted (...): the number of accepted
        guesses. On a device or under tracing, values cannot be checked. A sequence with a guess out of range then has
        no accepted guess, and all its tokens are -1. A token that cannot be drawn is also -1.

    Raises
    ------
    IndexError, TypeError, ValueError
        If a guess is out of range. If an argument has the wrong type, shape or value. If the row to draw from has an
        empty support or contains NaN.

    Notes
    -----
    The first guess that is rejected is replaced by a token drawn from max(p - q, 0), renormalised. If all guesses
    are accepted, one more token is drawn from the last row of `target`. Given the previous tokens, each token has
    exactly the distribution of the target, whatever the draft is. The function stores the probabilities of both
    models, which take as much memory as the scores.

    There is no gradient.

    References
    ----------
    Leviathan, Kalman & Matias (2023), Fast inference from transformers via speculative decoding. arXiv:2211.17192.
    Chen et al. (2023), Accelerating large language model decoding with speculative sampling. arXiv:2302.01318.

    Examples
    --------
    >>> import softargmax
    >>> target, draft = [[0.0, 9.0], [9.0, 0.0], [0.0, 9.0]], [[0.0, 9.0], [0.0, 9.0]]
    >>> softargmax.speculative_sample(target, draft, [1, 1], temperature=0.0, seed=0).tokens
    array([ 1,  0, -1])
    """
    target = rows_of(target, "target")
    draft = rows_of(like(draft, target, "draft"), "draft")
    tokens = _checked(target, draft, tokens)
    xp, length = namespace(target), tokens.shape[-1]
    key, stream = source_of(tokens, tokens.ndim - 1, seed, stream, generator)
    key = flipped(key, _KEY_CHANGE)
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    each = {name: _per_sequence(value, target, name) for name, value in filters.items()}
    p, q = (
        softmax(filter_scores(z, order=order, **each), temperature=each["temperature"], dtype=row_dtype(z.dtype))
        for z in (target, draft)
    )
    q = xp.astype(q, p.dtype, copy=False)
    draws = xp.full((1,), 1, dtype=tokens.dtype, device=device_of(tokens))
    v, _ = reference.uniforms(target, key, stream, math.prod(tokens.shape[:-1]), draws, length)
    accepted, wrong = reference.accepted_guesses(p, q, tokens, xp.reshape(v, tokens.shape))
    index = _drawn(reference.residual(p, q, accepted), key, stream)
    return SpeculativeSample(reference.continued(tokens, accepted, wrong, index), as_number(accepted))


def _per_sequence(value: Any, z: Any, name: str) -> Any:
    """Check a parameter. Reshape an array with one number per sequence so that it broadcasts with the scores."""
    if value is None or isinstance(value, Real):
        return value
    return check.per_row(value, z, (z.ndim - 2, z.ndim - 1), name, "the sequences", whole=name == "top_k")


def _drawn(p: Any, seed: Any, stream: Any) -> Any:
    """Draw one class from each distribution. The probabilities need not sum to 1."""
    z = namespace(p).log(p)
    try:
        return operations.categorical.first(Categorical(z, Distribution(UNIT), seed, stream, (z.ndim - 1,), 1, True))
    except ValueError as error:
        raise ValueError(f"target, draft{str(error).removeprefix('z')}") from None


def _checked(target: Any, draft: Any, tokens: Any) -> Any:
    """Check the guesses against the scores, and return them in the default integer dtype."""
    tokens = like(tokens, target, "tokens")
    if dtype_name(tokens.dtype) not in INTEGERS - {"bool"}:
        raise TypeError(f"tokens: expected integers, got dtype {tokens.dtype}")
    shape = tuple(tokens.shape)
    if draft.ndim < 2:
        raise ValueError(f"draft: expected shape (..., L, K), one row of scores per guess, got {tuple(draft.shape)}")
    if tokens.ndim == 0 or tuple(draft.shape[:-1]) != shape:
        raise ValueError(
            f"tokens: expected the draft's shape without the class axis, {tuple(draft.shape[:-1])}, got {shape}"
        )
    wanted = (*shape[:-1], shape[-1] + 1, draft.shape[-1])
    if tuple(target.shape) != wanted:
        raise ValueError(f"target: expected shape {wanted} for this draft, got {tuple(target.shape)}")
    xp = namespace(tokens)
    kind = xp.__array_namespace_info__().default_dtypes(device=device_of(tokens))["integral"]
    tokens = xp.astype(tokens, kind, copy=False)
    classes = draft.shape[-1]
    if check.inspectable(tokens) and bool(xp.any((tokens < 0) | (tokens >= classes))):
        raise IndexError(f"tokens: expected classes from 0 to {classes - 1}, got a class out of range")
    return tokens
