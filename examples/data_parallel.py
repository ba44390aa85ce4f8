"""Train a classifier of texts whose rows are spread over processes, with the loss of one process.

    torchrun --standalone --nproc-per-node 2 examples/data_parallel.py

Each process has all weights, and its part of the texts of a batch. The loss is the mean over the texts of all of them.
With the same weights it has the same bits for any number of processes: so has the first loss. The gradient of a weight
is a sum over all texts, which the processes add in another order than one process. So later losses agree to rounding.
For the weights of the last layer, `softargmax.parallel.linear_cross_entropy(.., by="rows")` adds in the order of one
process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

import softargmax

CLASSES, WORDS, WIDTH, ROWS, LENGTH, STEPS = 1000, 2000, 64, 1024, 4, 100


class Model(nn.Module):
    """A classifier of bags of words. Called with texts and their classes, it returns the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.weight = nn.Parameter(0.1 * torch.randn(CLASSES, WIDTH))

    def forward(self, texts: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return softargmax.linear_cross_entropy(self.embed(texts).mean(1), self.weight, target)


def batch_of(step: int, mesh: DeviceMesh) -> list[DTensor]:
    """Texts and their classes. Each process gets a part of the rows."""
    generator = torch.Generator().manual_seed(step)
    texts = torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator)
    return [distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None) for x in (texts, texts.amax(1) // 2)]


def main() -> None:
    """Train, and print the loss of each step. Its second form shows all bits."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = distribute_module(Model(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), 20.0)
    for step in range(STEPS):
        loss = model(*batch_of(step, mesh))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # add up the gradients of all processes
            parameter.grad = parameter.grad.redistribute(mesh, [Replicate()])
        optimizer.step()
        value = loss.full_tensor().item()
        if dist.get_rank() == 0:
            print(f"{step:3} {value:.6f} {value.hex()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
