"""A plain PyTorch loop over several processes: one coupling of the batch that they share.

    torchrun --nproc-per-node 2 examples/torchrun.py

Every process embeds its own share of a batch and calls the loss with it; ``group="world"`` makes it
the loss of the whole batch, the same number everywhere, and DistributedDataParallel's mean of
gradients is its gradient. However many processes there are, the losses are the same.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group: DDP's own import would keep it and its threads
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import tricouple as tc


def images(n: int = 512, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy points around a centre of each class, in place of a data set."""
    labels = torch.arange(n) % classes
    return 2 * torch.randn(classes, 16)[labels] + torch.randn(n, 16), labels


def train(epochs: int = 4, batch_size: int = 65) -> list[float]:
    """Train; returns the loss of every step."""
    torch.manual_seed(0)  # in every process: the same data, the same batches, the same weights
    rank, world = dist.get_rank(), dist.get_world_size()
    points, labels = images()
    order = RandomSampler(points, generator=torch.Generator().manual_seed(1))
    batches = BatchSampler(order, batch_size, drop_last=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)))
    criterion = tc.NegMMIOT(sharpness=10, group="world")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)

    losses = []
    for _ in range(epochs):
        shares = [batch[rank::world] for batch in batches]  # this process's rows of every batch
        for inputs, classes in DataLoader(TensorDataset(points, labels), batch_sampler=shares):
            loss = criterion(model(inputs), classes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        if rank == 0:
            print(f"loss {losses[-1]:.6f}", flush=True)
    return losses


def main() -> list[float]:
    """Begin, train and end: the model is gone before its group, whose end would wait for it."""
    dist.init_process_group("gloo")  # "nccl" on GPUs
    losses = train()
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
