"""A contestant's turn: check batches of the first epoch, time the next ones, measure memory. In its own process.

It is the training process. stagepipe and DataLoader have the same interface, `Feed`: `epoch` yields the batches of
an epoch, `close` ends the workers. Batches are checked by short digests, which are compared between processes.
"""

from __future__ import annotations

import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert

from benchmarks.common.turn import CpuClocks, answer_turn, list_descendant_pids, measure_pss_bytes
from benchmarks.loader import (
    COLLATE,
    DATALOADERS,
    FORKED_PRELOADED,
    MODELS,
    QUICKSTART,
    REFERENCE,
    SPAWNED_PRELOADED,
    THREE_PROCESSES,
    Answer,
    Job,
    Workers,
    make_collate_config,
    models,
)
from benchmarks.loader.models import EpochSampler, Images, Prepared, ThreeModels
from stagepipe.report import Report
from stagepipe.torch import Loader

FIELDS = ("image", "features")
"""The fields of a batch that can hold its tensor."""


def tensor(batch: dict[str, Any]) -> torch.Tensor:
    """Return the tensor of the batch: float32, one row per sample."""
    values = next(batch[name] for name in FIELDS if name in batch)
    assert isinstance(values, torch.Tensor), f"expected a tensor in the batch, received a {type(values).__name__}"
    assert values.dtype == torch.float32, f"expected a batch of float32, received {values.dtype}"
    return values


def digest(batch: dict[str, Any]) -> str:
    """Return `shape labels first all`: the digests of the labels, of the first element of each row, and of all bytes.

    The models' results are rounded, because the order of the sums in a product may differ between two processes.
    """
    rows = tensor(batch)
    rows = rows.round(decimals=1) if "features" in batch else rows
    shape = "x".join(map(str, rows.shape))
    first = rows.flatten(1)[:, :1].contiguous()
    return f"{shape} {_crc(_listed(batch['label']))} {_crc(first.numpy())} {_crc(rows.contiguous().numpy())}"


def spoiled(batch: dict[str, Any]) -> dict[str, Any]:
    """Corrupt the first element of the batch, for the test of the check."""
    name = next(name for name in FIELDS if name in batch)
    wrong = batch[name].clone()
    wrong.view(-1)[:1] += 1
    return {**batch, name: wrong}


def _listed(labels: Any) -> bytes:
    return repr(labels.tolist() if isinstance(labels, torch.Tensor) else labels).encode()


def _crc(buffer: Any) -> str:
    return f"{zlib.crc32(buffer):08x}"


_MEMORY_SAMPLES = 4
"""Number of memory samples, taken after this many batches: by then, everything that is created once exists."""


@dataclass(frozen=True)
class _Epoch:
    """The wait for the first batch, the waits for the others, and the items, wall and CPU time of the steady state."""

    first_ns: int
    waits_ns: list[int]
    items: int
    wall_ns: int
    cpu_ns: int


def measure(job: Job, make: Callable[[Job], Feed]) -> Answer:
    """Create the feed, run its epochs and close it."""
    bare, begin = measure_pss_bytes(), perf_counter_ns()
    feed = make(job)
    try:
        digests, first_batch_ns = _check_first_epoch(feed, job, begin)
        clocks = CpuClocks(list_descendant_pids())
        epochs = [_time_epoch(feed, number, job, clocks) for number in range(1, job.epochs + 1)]
        pss = _measure_memory(feed, job.epochs + 1)
    finally:
        feed.close()
    items = sum(epoch.items for epoch in epochs)
    return Answer(
        first_batch_s=first_batch_ns / 1e9,
        second_first_s=epochs[-1].first_ns / 1e9,
        items_per_s=items / sum(epoch.wall_ns for epoch in epochs) * 1e9,
        cpu_s_per_item=sum(epoch.cpu_ns for epoch in epochs) / items / 1e9,
        waits_s=[wait / 1e9 for epoch in epochs for wait in epoch.waits_ns],
        pss_bytes=pss,
        bare_pss_bytes=bare,
        digests=digests,
        told=feed.report_lines(),
    )


def _check_first_epoch(feed: Feed, job: Job, begin: int) -> tuple[list[str], int]:
    """Take the checked batches. Return their digests, and the time until the first one arrived."""
    digests: list[str] = []
    first_ns = 0
    for batch in islice(feed.epoch(0), job.checked):
        first_ns = first_ns or perf_counter_ns() - begin
        digests.append(digest(spoiled(batch) if job.corrupt else batch))
    return digests, first_ns


def _time_epoch(feed: Feed, number: int, job: Job, clocks: CpuClocks) -> _Epoch:
    """Time an epoch. Each batch is held until the next one arrives, as in any training loop."""
    waits: list[int] = []
    items, cpu = 0, clocks.read_ns()
    begin = requested = perf_counter_ns()
    for batch in feed.epoch(number):
        waits.append(perf_counter_ns() - requested)
        items += _step(batch, job)
        if len(waits) == job.steady_from:
            items, cpu, begin = 0, clocks.read_ns(), perf_counter_ns()
        requested = perf_counter_ns()
    wall, spent = perf_counter_ns() - begin, clocks.read_ns() - cpu
    assert len(waits) == job.batches, f"received {len(waits)} of {job.batches} batches"
    return _Epoch(waits[0], waits[1:], items, wall, spent)


def _step(batch: Batch, job: Job) -> int:
    """Do the training process's work on a batch, and return its number of samples."""
    rows = tensor(batch)
    if job.step == "sum":
        rows.sum()
    return len(rows)


def _measure_memory(feed: Feed, number: int) -> int:
    """Return the largest of a few memory samples over all processes, in the middle of an epoch that is not timed."""
    samples = [measure_pss_bytes() for _ in islice(feed.epoch(number), 2 * _MEMORY_SAMPLES)]
    return max(samples[_MEMORY_SAMPLES:] or samples)


CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"

EDITS: dict[str, tuple[str, ...]] = {
    "stagepipe": (),
    "stagepipe fused x 2": ("stages.augment.fuse=true", "stages.decode.workers=2"),
}
"""Changes to the quickstart's config by contestant: none; or all transforms in one process with two workers, as in
DataLoader."""


def overrides(name: str, images: str, side: int, batch: int) -> list[str]:
    """Return the contestant's overrides of the quickstart's config."""
    return [f"vars.images={images}", f"vars.size={side}", f"stages.batch.with.size={batch}", *EDITS[name]]


def make(job: Job) -> Feed:
    """Create the contestant that the job names. Its workers may start only with the first epoch."""
    return _MAKERS[job.part](job)


def _collate(job: Job) -> Feed:
    if job.contestant.startswith("stagepipe"):
        return Stagepipe(Loader(make_collate_config(job.contestant, job.side, job.batch, job.items)))
    return _dataloader(job, Prepared(job.side), job.batch)


def _quickstart(job: Job) -> Feed:
    if job.contestant.startswith("stagepipe"):
        edits = overrides(job.contestant, job.images, job.side, job.batch)
        return Stagepipe(Loader(CONFIG, edits, limit=job.items))
    return _dataloader(job, Images(job.images, job.side), job.batch)


def _models(job: Job) -> Feed:
    if job.contestant == THREE_PROCESSES:
        return Stagepipe(Loader(models.config(job.items, job.model_bytes)))
    made_before = job.contestant in {FORKED_PRELOADED, SPAWNED_PRELOADED, REFERENCE}
    return _dataloader(job, ThreeModels(job.model_bytes, eager=made_before), None)


def _dataloader(job: Job, dataset: Images | Prepared | ThreeModels, batch: int | None) -> Feed:
    if job.contestant == REFERENCE:
        return InProcess(dataset, job.items, batch)
    return TorchLoader(dataset, job.items, batch, DATALOADERS[job.part][job.contestant])


_MAKERS: dict[str, Callable[[Job], Feed]] = {COLLATE: _collate, QUICKSTART: _quickstart, MODELS: _models}


def take_turn(**request: Any) -> dict[str, Any]:
    """Run the job of `request` and return its answer; for the reference, only the digests."""
    torch.set_num_threads(1)  # as DataLoader and stagepipe do in their workers
    job = Job(**request)
    if job.contestant == REFERENCE:
        return {"digests": [digest(batch) for batch in islice(make(job).epoch(0), job.checked)]}
    return asdict(measure(job, make))


Batch = dict[str, Any]
_convert: Callable[[Any], Any] = default_convert  # it has no type annotations


class Feed:
    """A contestant, whose workers stay alive between epochs."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """Start epoch `number` and return its batches."""

    def close(self) -> None:
        """End the workers, if there are any."""

    def report_lines(self) -> list[str]:
        """Return the lines of its report, if it has one, once it is closed."""
        return []


class Stagepipe(Feed):
    """`stagepipe.torch.Loader`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:
        self._loader.set_epoch(number)
        return iter(self._loader)

    def close(self) -> None:
        self._loader.close()

    def report_lines(self) -> list[str]:
        return list(_summarize(self._loader.report()))


def _summarize(report: Report) -> Iterator[str]:
    for stage in report.stages:
        shares = ", ".join(f"{name} {getattr(stage, name):.2f}" for name in ("busy", "starved", "blocked", "overhead"))
        yield (
            f"{stage.name}: {stage.items} items, run p50 {stage.run_ns.p50 / 1000:.0f} us; {shares}; "
            f"CPU {stage.cpu_ns / 1e9:.2f} s"
        )
    for hop in report.hops:
        phases = hop.phases
        named = ((name.removesuffix("_ns"), getattr(phases, name).p50) for name in phases.__struct_fields__)
        listed = ", ".join(f"{name} {ns / 1000:.0f}" for name, ns in named)
        yield f"{hop.source} -> {hop.target}: cost p50 {hop.cost_ns.p50 / 1000:.0f} us ({listed})"
    yield report.verdict.sentence


class TorchLoader(Feed):
    """`torch.utils.data.DataLoader` over a map-style dataset."""

    def __init__(self, dataset: Dataset[Batch], items: int, batch: int | None, workers: Workers) -> None:
        """If `batch` is None, samples arrive one by one, converted but not collated."""
        self._sampler = EpochSampler(items)
        sampler: Any = self._sampler  # DataLoader passes the sampler's keys to the dataset, whatever their type
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=batch,
            sampler=sampler,
            num_workers=workers.count,
            prefetch_factor=workers.prefetch,
            persistent_workers=True,
            multiprocessing_context=workers.context,
        )
        self._loader: DataLoader[Any] | None = loader
        self._iterator: Iterator[Batch] | None = None

    def epoch(self, number: int) -> Iterator[Batch]:
        """Start an iteration; with persistent workers it is the same iterator every time."""
        assert self._loader is not None, "closed"
        self._sampler.epoch = number
        self._iterator = iter(self._loader)
        return self._iterator

    def close(self) -> None:
        """End the workers, and release the iterator that keeps them alive."""
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self._loader = self._iterator = None


class InProcess(Feed):
    """A dataset's samples, one after another in this process: the reference for the others' first epoch."""

    def __init__(self, dataset: Dataset[Batch], items: int, batch: int | None) -> None:
        """If `batch` is None, samples arrive one by one."""
        self._dataset: Any = dataset  # its key is a SampleKey
        self._items, self._batch = items, batch

    def epoch(self, number: int) -> Iterator[Batch]:
        samples: Iterator[Batch] = (self._dataset[number, position] for position in range(self._items))
        while samples_of_batch := list(islice(samples, self._batch or 1)):
            yield _convert(samples_of_batch[0]) if self._batch is None else default_collate(samples_of_batch)


if __name__ == "__main__":
    answer_turn(sys.argv[1:], take_turn)
