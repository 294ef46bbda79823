"""From shared memory to the GPU: bytes a second, stagepipe beside `DataLoader(pin_memory=True)`. Needs a GPU.

    python benchmarks/device.py [--megabytes 38] [--batches 60] [--rounds 5]

Both send the same prepared float32 batch over and over from one worker process to the training process and on to the
device; timed is from the request of the first batch until the last one is on the device. `bare` copies one pinned
tensor again and again: what the bus takes at most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils.data import DataLoader, IterableDataset

from side_by_side.machine import machine, machine_line
from stagepipe.torch import Loader


class Batches(IterableDataset[torch.Tensor]):
    """The same batch again and again."""

    def __init__(self, megabytes: int, count: int) -> None:
        """`count` batches an epoch."""
        self.megabytes, self.count = megabytes, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Prepared once an epoch, before the first batch."""
        batch = torch.ones(self.megabytes * (1 << 20) // 4)
        for _ in range(self.count):
            yield batch


def drained(batches: Iterator[torch.Tensor]) -> float:
    """Seconds until the last batch is on the device."""
    begin = time.perf_counter()
    for batch in batches:
        batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def bare(megabytes: int, count: int) -> Callable[[], float]:
    """One pinned tensor, copied `count` times."""
    pinned = torch.ones(megabytes * (1 << 20) // 4).pin_memory()
    return lambda: drained(iter([pinned] * count))


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=38)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU is to be seen here: there is nothing to measure", file=sys.stderr)
        return 2
    print(machine_line(machine()), torch.cuda.get_device_name(), sep="\n")
    source = {"uses": "device:Batches", "with": {"megabytes": options.megabytes, "count": options.batches}}
    peer = DataLoader(
        Batches(options.megabytes, options.batches),
        batch_size=None,
        num_workers=1,
        pin_memory=True,
        persistent_workers=True,
    )
    with Loader({"source": source}, device="cuda") as loader:
        contestants = {
            "bare": bare(options.megabytes, options.batches),
            "stagepipe": lambda: drained(iter(loader)),
            "DataLoader": lambda: drained(iter(peer)),
        }
        found: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(options.rounds + 1):
            for name, run in contestants.items():
                spent_s = run()  # type: ignore[no-untyped-call]
                if turn:  # the first starts processes and locks pages
                    found[name].append(options.megabytes * options.batches / 1024 / spent_s)
    for name, rates in found.items():
        print(f"{name:12}{statistics.median(rates):8.2f} GiB/s  [{min(rates):.2f}, {max(rates):.2f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
