"""The family on ragged rows: segments of one long axis between sorted offsets (graphs, packed sequences)."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.offsets import offsets_of
from softargmax.core.signature import public
from softargmax.normalize import segment_operations as operations
from softargmax.normalize.segment_operations import SegmentScores

_COLUMNS = "the axes after the first (every segment has the same)"


@public
def segment_softmax(z: Any, /, offsets: Any, *, temperature: Any = 1.0) -> Any:
    r"""The softmax of each segment of z's first axis.

    .. math:: p_i = \frac{e^{z_i / T}}{\sum_{j \in S} e^{z_j / T}}, \qquad
              S = \{o_s, \dots, o_{s+1} - 1\} \ni i

    Parameters
    ----------
    z : array_like, shape (N, ...)
        Scores, any array library. Other axes (heads) are carried along.
    offsets : array of int, shape (S + 1,)
        Where segments begin and end: non-decreasing, from 0 to N. A segment may be empty.
    temperature : float or array
        T as in `softmax`; an array broadcasts with the other axes (one per head), the same for every segment.

    Returns
    -------
    array
        p, of z's shape and dtype.

    Raises
    ------
    TypeError
        If an argument is not of a kind, or dtype, that it may be.
    ValueError
        If offsets do not go from 0 to N without falling, or another argument has a wrong shape or value.

    Notes
    -----
    Each segment is a row, with the edge rules of `softmax` and its gradient. Where offsets cannot be looked at (on a
    device, in a traced function) and are wrong, the result is NaN.

    References
    ----------
    Velickovic et al. (2018), Graph attention networks, section 2.1: a softmax over each node's neighbours.
    arXiv:1710.10903.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.segment_softmax([1.0, 2.0, 5.0, 5.0, 5.0], [0, 2, 2, 4, 5]).round(3)
    array([0.269, 0.731, 0.5  , 0.5  , 1.   ])
    """
    return operations.segment_softmax.first(_checked(z, offsets, temperature))


@public
def segment_log_softmax(z: Any, /, offsets: Any, *, temperature: Any = 1.0) -> Any:
    r"""The natural logarithms of `segment_softmax`, without forming it.

    .. math:: \log p_i = z_i / T - \log \sum_{j \in S} e^{z_j / T}

    Parameters
    ----------
    z, offsets, temperature
        As in `segment_softmax`.

    Returns
    -------
    array
        log p, of z's shape and dtype, at most 0.

    Raises
    ------
    TypeError
        If an argument is not of a kind, or dtype, that it may be.
    ValueError
        If offsets do not go from 0 to N without falling, or another argument has a wrong shape or value.

    Notes
    -----
    Each segment is a row, with the edge rules of `log_softmax` and its gradient.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> softargmax.segment_log_softmax([1.0, 2.0, 5.0, 5.0, 5.0], [0, 2, 2, 4, 5]).round(3)
    array([-1.313, -0.313, -0.693, -0.693,  0.   ])
    """
    return operations.segment_log_softmax.first(_checked(z, offsets, temperature))


@public
def segment_logsumexp(z: Any, /, offsets: Any, *, temperature: Any = 1.0) -> Any:
    r"""The smooth maximum of each segment of z's first axis.

    .. math:: T \log \sum_{j \in S} e^{z_j / T}

    Parameters
    ----------
    z, offsets, temperature
        As in `segment_softmax`.

    Returns
    -------
    array, shape (S, ...)
        One number per segment (and other place); float32 for half scores.

    Raises
    ------
    TypeError
        If an argument is not of a kind, or dtype, that it may be.
    ValueError
        If offsets do not go from 0 to N without falling, or another argument has a wrong shape or value.

    Notes
    -----
    Each segment is a row, with the edge rules of `logsumexp` and its gradient: an empty one gives -inf.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> softargmax.segment_logsumexp([1.0, 2.0, 5.0, 5.0, 5.0], [0, 2, 2, 4, 5]).round(3)
    array([2.313,  -inf, 5.693, 5.   ])
    """
    return operations.segment_logsumexp.first(_checked(z, offsets, temperature))


def _checked(z: Any, offsets: Any, temperature: Any) -> SegmentScores:
    z = check.scores(z)
    offsets = offsets_of(offsets, z)
    return SegmentScores(z, offsets, check.scale_of(temperature, None, z, (0,), rows=_COLUMNS), z.dtype)
