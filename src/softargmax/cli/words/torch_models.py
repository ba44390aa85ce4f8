"""Small language models: a body that maps tokens to hidden vectors, and any output layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from softargmax.cli.words.output_layers import LAYERS, LayerFactory
from softargmax.cli.words.settings import HEADS
from softargmax.nn import Attention, OutputLayer

if TYPE_CHECKING:
    from softargmax.cli.words.settings import Settings
    from softargmax.cli.words.vocabulary import Ints

EMBEDDED, HIDDEN = 64, 128  # sizes of the window model's embeddings and hidden layer
BLOCKS = 2


class Window(nn.Module):
    """A window model: one hidden layer on the concatenated embeddings of the last n tokens (n is `context`).

    The model maps S sequences of tokens, shape (S, n - 1 + L), to hidden vectors of shape (S, L, D). Each vector
    depends on its own token and the n - 1 tokens before it.
    """

    def __init__(self, classes: int, dim: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(classes, EMBEDDED, sparse=True)
        self.hidden = nn.Linear(context * EMBEDDED, HIDDEN)
        self.out = nn.Linear(HIDDEN, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        windows = self.embedding(tokens).unfold(1, self.context, 1)
        found: Tensor = self.out(torch.tanh(self.hidden(windows.flatten(2))))
        return found


class Block(nn.Module):
    """A transformer block: x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(dim), Attention(dim, HEADS, causal=True))
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        found: Tensor = x + self.mlp(x)
        return found


class CausalAttention(nn.Module):
    """A causal transformer.

    The model maps S sequences of tokens, shape (S, L), to hidden vectors of shape (S, L, D). Each vector depends on its
    own token and all tokens before it.
    """

    def __init__(self, classes: int, dim: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, dim, sparse=True)
        self.position = nn.Parameter(torch.zeros(context, dim))
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(BLOCKS)), nn.LayerNorm(dim))

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.blocks(self.embedding(tokens) + self.position[: tokens.shape[1]])
        return found


BODIES = {"window": Window, "attention": CausalAttention}


class LanguageModel(nn.Module):
    """A body and an output layer, initialised from the seed.

    The input is a batch of S spans (training sequences), shape (S, before + length). See `Settings`.
    """

    def __init__(self, settings: Settings, counts: Ints) -> None:
        super().__init__()
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.body = BODIES[settings.model](len(counts), settings.dim, settings.context)
            self.layer: OutputLayer = LAYERS[settings.layer](LayerFactory(settings.dim, counts, settings.seed))

    def loss(self, spans: Tensor) -> Tensor:
        """Return the output layer's loss of the predicted tokens."""
        loss: Tensor = self.layer(self.body(spans[:, :-1]), self.predicted(spans))
        return loss

    def log_prob_of(self, spans: Tensor) -> Tensor:
        """Return the log-probability of every predicted token, shape (S, length)."""
        found: Tensor = self.layer.log_prob_of(self.body(spans[:, :-1]), self.predicted(spans))
        return found

    def log_prob(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities of the next token, shape (K,). Only the last `context` of `tokens` are used."""
        found: Tensor = self.layer.log_prob(self.body(tokens[None, -self.settings.context :])[0, -1])
        return found

    def predicted(self, spans: Tensor) -> Tensor:
        """Return the tokens of the spans that the model has to predict, shape (S, length)."""
        return spans[:, self.settings.before :]
