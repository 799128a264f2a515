"""A training that can be stopped at any moment and goes on from its checkpoint; alone, or under torchrun.

    adlro submit --gpus 2 --preemptible -- torchrun examples/resumable_training.py
    adlro submit --preemptible -- python examples/resumable_training.py

It ends with the same loss, to the last bit, however often it was stopped: a checkpoint has all that the rest depends
on, and the data of a step depend on the step alone. It lies in ADLRO_JOB_DIR, which all attempts of a job have.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Trains from the newest checkpoint to the last step, or until it is asked to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.0, help="pretended work of a step, seconds")
    options = parser.parse_args()
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))

    torch.set_num_threads(1)
    dist.init_process_group("gloo", **({} if "RANK" in os.environ else ALONE))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step, loss = load(net, optimizer)
    say(f"begins at step {step}")
    while step < options.steps:
        loss = train(model, optimizer, step)
        step += 1
        time.sleep(options.step_s)
        # All ranks stop at one step, though each is asked at another moment.
        stops = torch.tensor(len(asked_to_stop))
        dist.all_reduce(stops, dist.ReduceOp.MAX)
        if stops > 0 or step % options.checkpoint_every == 0 or step == options.steps:
            save(net, optimizer, step, loss)
        if stops > 0 and step < options.steps:
            say(f"stopped at step {step}")
            break
    else:
        say(f"final loss {loss!r}")
    dist.barrier()
    dist.destroy_process_group()


ALONE: dict[str, Any] = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
"""How a process that torchrun has not started makes a group of itself."""


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """One step; returns its loss, the mean of all ranks'."""
    draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(16, 8, generator=draw)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    torch.autograd.backward(loss)
    optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def checkpoint() -> Path:
    """The file, in the directory of the job; without ADLRO in the present one."""
    return Path(os.environ.get("ADLRO_JOB_DIR", "."), "checkpoint.pt")


def load(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Takes over the newest checkpoint; returns the steps that are done, and the last one's loss."""
    if not checkpoint().exists():
        return 0, float("nan")
    found = torch.load(checkpoint(), weights_only=True)
    net.load_state_dict(found["net"])
    optimizer.load_state_dict(found["optimizer"])
    return found["step"], found["loss"]


def save(net: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, loss: float) -> None:
    """Replaces the checkpoint: whoever is killed meanwhile leaves the old one whole."""
    if dist.get_rank() == 0:
        draft = checkpoint().with_suffix(".new")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "loss": loss}, draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(checkpoint())


def say(text: str) -> None:
    """A line of the first rank's."""
    if dist.get_rank() == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
    # Without Python's shutdown: on a busy machine, a thread of gloo that still holds a tensor aborts the process in it,
    # and a training that has ended well would be told as failed.
    os._exit(0)
