"""The softmax family inside models of Hugging Face transformers.

`register` makes `attn_implementation="softargmax"` work: a model then computes its attention with
`softargmax.attention`, and its weights and results stay the same up to rounding. The extra `transformers` is required.
"""

from softargmax.core.extras import install

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name not in ("torch", "transformers"):
        raise
    raise ImportError(f"softargmax.integrate needs transformers and PyTorch: {install('transformers')}") from missing

from softargmax.integrate.cache import GrowingCache
from softargmax.integrate.fuse import fuse, unfuse
from softargmax.integrate.register import register, unregister
from softargmax.integrate.sampler import Sampler

__all__ = ["GrowingCache", "Sampler", "fuse", "register", "unfuse", "unregister"]
