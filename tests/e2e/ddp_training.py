"""A training of torch over several processes on the CPU, as torchrun starts it: a line by least squares.

    torchrun ddp_training.py FOLDER

Each rank has its own data; without the others' gradients none finds the line. Notes each start in FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    Path(folder, f"{os.environ['ADLRO_JOB_ID']}.{rank}").write_text(f"{world}\n")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs = torch.zeros(8, 2)
    inputs[:, rank % 2] = 1.0  # each rank knows one of the two weights
    targets = inputs @ torch.tensor([[3.0], [-2.0]])
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    weights = [round(float(each), 2) for each in model.module.weight.detach().flatten()]
    sys.stdout.write(f"rank {rank} of {world}: weights {weights}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    # Without Python's shutdown: a thread of gloo that still holds a tensor would abort the process in it.
    os._exit(0)
