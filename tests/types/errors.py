"""Calls that a type checker must refuse. If a checker accepts a call, it reports an unused comment `type: ignore`."""

from __future__ import annotations

import torch

import softargmax as sa

z, q, y = torch.ones(2, 3), torch.ones(1, 2, 3), torch.tensor([0, 1])

sa.softmax(z, dim=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
sa.softmax(z, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
sa.softmax(z=z)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
sa.softmax(z, axis="last")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
sa.softmax(z, temperature="hot")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
sa.softmax(z, dtype=32)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
sa.softmax("scores")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
sa.softmax(None)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
sa.topk_softmax(z)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
sa.cross_entropy(z)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
sa.cross_entropy(z, y, keepdims=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
sa.attention(q, q, [[[1.0]]])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
sa.attention(q, q, q, is_causal=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
sa.categorical(z, generator=0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
sa.softmax_with_lse(z).probabilities  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
sa.nn.Softmax()(z, axis=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
sa.nn.Softmax(axis=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
sa.softplus(z)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
sa.parallel.cross_entropy(z, y, label_smothing=0.1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
sa.parallel.softmax(z, axis="last")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
