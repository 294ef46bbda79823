"""stagepipe and DataLoader behind one interface: `epoch` yields the batches of an epoch, `close` ends the workers.

It runs in the process of the contestant, which is the training process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, Dataset, default_collate, default_convert

from benchmarks.loader.contest import Workers
from benchmarks.loader.models import EpochSampler
from stagepipe.report import Report
from stagepipe.torch import Loader

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
