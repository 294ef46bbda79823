"""Measure the throughput from shared memory to the GPU: stagepipe against `DataLoader(pin_memory=True)`. Needs a GPU.

    python -m benchmarks.device [--megabytes 38] [--batches 60] [--rounds 6]

Both send the same prepared float32 batch repeatedly, from one worker process to the training process and on to the
device. The timing starts with the request for the first batch and ends when the last one is on the device. `bare`
copies one pinned tensor repeatedly: the upper limit of the bus. `device` and `pin_memory` are the options of
stagepipe's `Loader`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.common.command import finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.turn import take_rounds
from stagepipe.torch import Loader


class Batches(IterableDataset[torch.Tensor]):
    """The same batch, `count` times per epoch."""

    def __init__(self, megabytes: int, count: int) -> None:
        self.megabytes, self.count = megabytes, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        batch = torch.ones(self.megabytes * (1 << 20) // 4)
        for _ in range(self.count):
            yield batch


def time_to_device(batches: Iterator[torch.Tensor]) -> float:
    """Return the seconds until the last batch is on the device."""
    begin = time.perf_counter()
    for batch in batches:
        batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def make_bare_copy(megabytes: int, count: int) -> Callable[[], float]:
    """Return a function that copies one pinned tensor `count` times."""
    pinned = torch.ones(megabytes * (1 << 20) // 4).pin_memory()
    return lambda: time_to_device(iter([pinned] * count))


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Return the exit status, which is 2 without a GPU."""
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=38)
    parser.add_argument("--batches", type=int, default=60)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("torch finds no GPU on this machine; run this benchmark on a machine with a CUDA GPU", file=sys.stderr)
        return 2
    document = open_run("device", torch.cuda.get_device_name())
    source = {"uses": Batches, "with": {"megabytes": options.megabytes, "count": options.batches}}
    peer = DataLoader(
        Batches(options.megabytes, options.batches),
        batch_size=None,
        num_workers=1,
        pin_memory=True,
        persistent_workers=True,
    )
    with Loader({"source": source}, device="cuda") as loader, Loader({"source": source}, pin_memory=True) as pinning:
        contestants: dict[str, Callable[[], float]] = {
            "bare": make_bare_copy(options.megabytes, options.batches),
            "device": lambda: time_to_device(iter(loader)),
            "pin_memory": lambda: time_to_device(iter(pinning)),
            "DataLoader": lambda: time_to_device(iter(peer)),
        }
        for run in contestants.values():
            run()  # starts processes and locks pages
        gib = options.megabytes * options.batches / 1024
        found = take_rounds(list(contestants), options.rounds, lambda name: {"GiB/s": gib / contestants[name]()})
    print(*format_figures("throughput", found, ["GiB/s"]), sep="\n")
    finish(options.json, {**document, "figures": found})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
