"""Measure `dataset` followed by `Batch` on tiny samples: stagepipe against `torch.utils.data.DataLoader`.

    python -m benchmarks.dataset_batch [--rounds 6] [--data tensors,rows] [--workers 1,2] [--items 50000]

tensors: (uint8 tensor 3 x 32 x 32, int), like CIFAR-10 in memory. arrays: the same as NumPy arrays. rows: a dict of a
float32 vector of 20 and an int, like a row of a table. Batches have 256 samples, in the dataset's order. Each turn is a
new process; the contestants take turns in a different order every round. A turn runs one epoch to warm up and then
three epochs, of which the best counts; the workers stay alive. CPU is the time of the caller and all its descendants.
Every epoch's batches are summed up, and the sums of all contestants must agree.

Ratios compare with a DataLoader with the same number of workers, pair by pair within a round.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.common.command import add_names, finish, make_parser, open_run
from benchmarks.common.figures import format_figures, require_same
from benchmarks.common.turn import CpuMeter, adopt_orphans, answer_turn, run_turn, take_rounds

_BATCH = 256
_TIMED_EPOCHS = 3
_LIMIT_S = 300.0
_PEER = "DataLoader"
_CONTESTANTS = (_PEER, "stagepipe", "stagepipe reseed: false")


class Samples:
    """Samples in memory, each with a label: tensors, arrays, or rows of a table."""

    def __init__(self, data: str, count: int) -> None:
        random = np.random.default_rng(0)
        self._is_table = data == "rows"
        self._values: Any = (
            random.standard_normal((count, 20), np.float32)
            if self._is_table
            else random.integers(0, 255, (count, 3, 32, 32), np.uint8)
        )
        if data == "tensors":
            import torch

            self._values = torch.from_numpy(self._values)
        self._labels = (np.arange(count) % 10).tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Any:
        value, label = self._values[index], self._labels[index]
        return {"x": value, "y": label} if self._is_table else (value, label)


@contextlib.contextmanager
def _open(contestant: str, dataset: Any, workers: int) -> Iterator[Any]:
    if contestant == _PEER:
        from torch.utils.data import DataLoader

        yield DataLoader(dataset, batch_size=_BATCH, num_workers=workers, persistent_workers=True)
        return
    from stagepipe import from_dataset

    with from_dataset(dataset, workers=workers, reseed="false" not in contestant).batch(_BATCH).open() as pipeline:
        yield pipeline


def _run_turn(contestant: str, data: str, workers: int, items: int) -> dict[str, float]:
    """Take one turn, in a separate process."""
    with _open(contestant, Samples(data, items), workers) as loader:
        check = [_consume(loader)]
        times_s, cpu_s = [], []
        for _ in range(_TIMED_EPOCHS):
            cpu, begin_s = CpuMeter(), time.perf_counter()
            check.append(_consume(loader))
            times_s.append(time.perf_counter() - begin_s)
            cpu_s.append(cpu.measure_s())
    assert len(set(check)) == 1, check
    return {"items/s": items / min(times_s), "CPU us": min(cpu_s) / items * 1e6, "check": check[0]}


def _consume(loader: Any) -> float:
    total = 0.0
    for number, batch in enumerate(loader):
        values, labels = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        total += (number + 1) * (float(values[0].flatten()[0]) + float(values[-1].flatten()[-1]) + float(labels[-1]))
    return total


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    if answer_turn(arguments, _run_turn):
        return
    parser = make_parser(__doc__)
    add_names(parser, "--data", ("tensors", "arrays", "rows"), "kind")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, separated by commas")
    parser.add_argument("--items", type=int, default=50_000, help="samples in an epoch")
    options = parser.parse_args(arguments)
    adopt_orphans()
    document = open_run("dataset_batch")
    for data in options.data:
        for workers in map(int, options.workers.split(",")):
            job = {"data": data, "workers": workers, "items": options.items}
            found = take_rounds(
                _CONTESTANTS,
                options.rounds,
                lambda name, job=job: run_turn("benchmarks.dataset_batch", {"contestant": name, **job}, _LIMIT_S),  # type: ignore[misc]
            )
            require_same(found, "check")
            title = f"{data} by {workers}"
            document[title] = found
            print("", *format_figures(title, found, ("items/s", "CPU us"), _PEER), sep="\n", flush=True)
    finish(options.json, document)


if __name__ == "__main__":
    main(sys.argv[1:])
