"""Trains a small model on all tasks of a step of Slurm, and goes on in mid-epoch after a requeue."""

import argparse
import os
import signal
import sys
import types
from pathlib import Path

import torch
import torch.distributed as dist

from stagepipe.torch import Loader

INTERRUPTED = 99
"""The exit status with which train.sbatch puts the job back into the queue."""
received: list[int] = []


def remember(number: int, _: types.FrameType | None) -> None:
    """Take a signal of Slurm: the step that runs is finished first."""
    received.append(number)


def is_interrupted() -> bool:
    """Whether a rank has been signalled. All ranks must stop after the same step."""
    flag = torch.tensor(len(received))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def save(path: Path, **values: object) -> None:
    """Write a checkpoint whole, or not at all: the time limit may come first."""
    if dist.get_rank() == 0:
        torch.save(values, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)
    dist.barrier()


def main() -> None:
    """Train from the last checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, remember)
    rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Loader(options.config, rank="auto", even="drop") as loader:
        step = 0
        if options.checkpoint.exists():
            saved = torch.load(options.checkpoint, weights_only=False)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
            print(f"rank {rank}: goes on after step {step}", flush=True)
        while loader.epoch < options.epochs:
            for batch in loader:
                loss = model(batch["x"]).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                print(f"rank {rank}: step {step}, items {batch['id'].tolist()}, loss {loss.item():.6f}", flush=True)
                if is_interrupted():
                    states = [None] * world_size
                    dist.all_gather_object(states, loader.state_dict())
                    both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    save(options.checkpoint, **both, loader=states, step=step)
                    print(f"rank {rank}: saved after step {step}", flush=True)
                    sys.exit(INTERRUPTED)
    print(f"rank {rank}: trained {step} steps", flush=True)


if __name__ == "__main__":
    main()
