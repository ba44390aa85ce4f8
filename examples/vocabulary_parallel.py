"""Train a small transformer whose vocabulary is spread over processes, with the same losses for any number of them.

    torchrun --standalone --nproc-per-node 2 examples/vocabulary_parallel.py

The embedding and the last layer share one weight. Each process has a part of its rows, and of the optimizer's numbers
for them. The rest of the model is the same in all processes, and so are the texts.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import softargmax

CLASSES, WIDTH, LENGTH, ROWS, STEPS = 20_000, 64, 32, 8, 20


class Model(nn.Module):
    """A language model. Called with texts, it returns the loss of predicting each token from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = softargmax.nn.FullSoftmax(WIDTH, CLASSES, weight=self.embed.weight)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, texts: Tensor) -> Tensor:
        """Return the loss."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.body(self.embed(texts[:, :-1]) + self.places, mask=mask, is_causal=True)
        return self.head(hidden, texts[:, 1:])


def texts_of(step: int) -> Tensor:
    """Texts of 100 tokens, in which one of two others follows each token."""
    generator = torch.Generator().manual_seed(step)
    tokens = [torch.randint(0, 100, (ROWS,), generator=generator)]
    for _ in range(LENGTH):
        choice = torch.randint(0, 2, (ROWS,), generator=generator)
        tokens.append((3 * tokens[-1] + 31 * choice + 7) % 100)
    return torch.stack(tokens, 1) * (CLASSES // 100)


def main() -> None:
    """Train, and print the loss of each step. Its second form shows all bits."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    style = softargmax.parallel.VocabularyParallel()
    model = parallelize_module(Model(), mesh["tp"], {"embed": style, "head": style})
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(STEPS):
        loss = model(texts_of(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"{step:3} {loss.item():.6f} {loss.item().hex()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
