"""Measure `dataset` followed by `Batch` on tiny samples: stagepipe against `torch.utils.data.DataLoader`.

    python -m benchmarks.dataset_batch [--rounds 6] [--data tensors,rows] [--workers 1,2] [--items 50000]

tensors: (uint8 tensor 3 x 32 x 32, int), as CIFAR-10 in memory. arrays: the same as NumPy arrays. rows: a dict of a
float32 vector of 20 and an int, as a row of a table. Batches have 256 samples, in the dataset's order. Each turn is a
new process; the contestants take turns in a different order every round. A turn runs one epoch to warm up and then
three that are timed; the workers stay alive. CPU is that of the caller and all its descendants, from their clocks
(clock_getcpuclockid(3)). Every epoch's batches are summed up, and the sums of all contestants must agree.

Ratios are to DataLoader with as many workers, pair by pair within a round: `median [lowest, highest]`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.common.command import machine, machine_line, repeat_command
from benchmarks.common.figures import estimate, ratio
from benchmarks.common.turn import adopt_orphans, answer_turn, order, run_turn
from benchmarks.common.usage import CpuMeter

_BATCH = 256
_TIMED_EPOCHS = 3
_LIMIT_S = 300.0
_CONTESTANTS = ("DataLoader", "stagepipe", "stagepipe reseed: false")


class Images:
    """Tiny images in memory, with a label."""

    def __init__(self, count: int, *, tensors: bool) -> None:
        images = np.random.default_rng(0).integers(0, 255, (count, 3, 32, 32), np.uint8)
        self.labels = (np.arange(count) % 10).tolist()
        self.images: Any = images
        if tensors:
            import torch

            self.images = torch.from_numpy(images)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.images[index], self.labels[index]


class Rows:
    """Rows of a table."""

    def __init__(self, count: int) -> None:
        self.table = np.random.default_rng(0).standard_normal((count, 20), np.float32)
        self.labels = (np.arange(count) % 10).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.table[index], "y": self.labels[index]}


def _make_dataset(data: str, items: int) -> Any:
    return Rows(items) if data == "rows" else Images(items, tensors=data == "tensors")


@contextlib.contextmanager
def _open(contestant: str, dataset: Any, workers: int) -> Iterator[Any]:
    if contestant == "DataLoader":
        from torch.utils.data import DataLoader

        yield DataLoader(dataset, batch_size=_BATCH, num_workers=workers, persistent_workers=True)
        return
    from stagepipe import from_dataset

    with from_dataset(dataset, workers=workers, reseed="false" not in contestant).batch(_BATCH).open() as pipeline:
        yield pipeline


def _run_turn(contestant: str, data: str, workers: int, items: int) -> dict[str, float]:
    """One turn, in a process of its own."""
    with _open(contestant, _make_dataset(data, items), workers) as loader:
        check = [_consume(loader)]
        times_s, cpu_s = [], []
        for _ in range(_TIMED_EPOCHS):
            cpu, begin_s = CpuMeter(), time.perf_counter()
            check.append(_consume(loader))
            times_s.append(time.perf_counter() - begin_s)
            cpu_s.append(cpu.measure_s())
    assert len(set(check)) == 1, check
    return {"items_per_s": items / min(times_s), "cpu_us": min(cpu_s) / items * 1e6, "check": check[0]}


def _consume(loader: Any) -> float:
    total = 0.0
    for number, batch in enumerate(loader):
        values, labels = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        total += (number + 1) * (float(values[0].flatten()[0]) + float(values[-1].flatten()[-1]) + float(labels[-1]))
    return total


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="each contestant has a turn in each")
    parser.add_argument("--data", default="tensors,arrays,rows", help="tensors, arrays, rows, separated by commas")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, separated by commas")
    parser.add_argument("--items", type=int, default=50_000, help="samples in an epoch")
    if answer_turn(arguments, _run_turn):
        return
    options = parser.parse_args(arguments)
    adopt_orphans()
    print(machine_line(machine()), f"Repeat: {repeat_command('dataset_batch')}", sep="\n")
    for data in options.data.split(","):
        for workers in map(int, options.workers.split(",")):
            _compare(data, workers, options)


def _compare(data: str, workers: int, options: argparse.Namespace) -> None:
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in _CONTESTANTS}
    for number in range(options.rounds):
        for name in order(_CONTESTANTS, number):
            job = {"contestant": name, "data": data, "workers": workers, "items": options.items}
            figures[name].append(run_turn("benchmarks.dataset_batch", job, _LIMIT_S))
    checks = {figure["check"] for turns in figures.values() for figure in turns}
    assert len(checks) == 1, f"the contestants' batches differ: {checks}"
    columns = {
        name: {key: [turn[key] for turn in turns] for key in ("items_per_s", "cpu_us")}
        for name, turns in figures.items()
    }
    reference = columns["DataLoader"]
    coverage = estimate([0.0] * options.rounds).coverage
    print(f"\n{data}, {workers} worker{'s' * (workers > 1)}: {options.rounds} rounds, {100 * coverage:.0f} % intervals")
    print(f"{'':25}{'items/s':>9}{'CPU us/item':>13}   {'items/s, ratio':22}{'CPU, ratio':22}")
    for name, column in columns.items():
        rate, cpu = estimate(column["items_per_s"]), estimate(column["cpu_us"])
        rate_ratio, cpu_ratio = (ratio(column[key], reference[key]).text() for key in ("items_per_s", "cpu_us"))
        print(f"{name:25}{rate.value:9.0f}{cpu.value:13.2f}   {rate_ratio:22}{cpu_ratio:22}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
