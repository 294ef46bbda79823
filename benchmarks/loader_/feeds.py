"""stagepipe and DataLoader behind one interface: `epoch` gives an epoch's batches, `close` ends the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset, default_collate, default_convert

from loader_.contest import Workers
from loader_.datasets import Places
from stagepipe.report import Report
from stagepipe.torch import Loader

Batch = dict[str, Any]
_convert: Callable[[Any], Any] = default_convert  # it has no types


class Feed(Protocol):
    """A contestant, its workers alive from one epoch to the next."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`; work on them begins now."""

    def close(self) -> None:
        """End the workers."""

    def told(self) -> list[str]:
        """What it says of itself once it is closed."""


class Stagepipe:
    """`stagepipe.torch.Loader`."""

    def __init__(self, loader: Loader) -> None:
        """`loader` is this one's from now on."""
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:
        """An iteration."""
        self._loader.set_epoch(number)
        return iter(self._loader)

    def close(self) -> None:
        """End it."""
        self._loader.close()

    def told(self) -> list[str]:
        """Its report in short."""
        return list(_in_short(self._loader.report()))


def _in_short(report: Report) -> Iterator[str]:
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


class TorchLoader:
    """`torch.utils.data.DataLoader` over a map-style dataset."""

    def __init__(self, dataset: Dataset[Batch], items: int, batch: int | None, workers: Workers) -> None:
        """`batch` None: samples come one by one, converted but not collated."""
        self._places = Places(items)
        places: Any = self._places  # a sampler of places is one to a map-style dataset of places
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=batch,
            sampler=places,
            num_workers=workers.count,
            prefetch_factor=workers.prefetch,
            persistent_workers=True,
            multiprocessing_context=workers.context,
        )
        self._loader: DataLoader[Any] | None = loader
        self._iterator: Iterator[Batch] | None = None

    def epoch(self, number: int) -> Iterator[Batch]:
        """An iteration; with persistent workers it is the same iterator every time."""
        assert self._loader is not None, "closed"
        self._places.epoch = number
        self._iterator = iter(self._loader)
        return self._iterator

    def close(self) -> None:
        """Its workers end when nobody holds the iterator."""
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self._loader = self._iterator = None

    def told(self) -> list[str]:
        """Nothing."""
        return []


class InProcess:
    """A dataset's samples, one after another in this process: what the others' first epoch is held against."""

    def __init__(self, dataset: Dataset[Batch], items: int, batch: int | None) -> None:
        """`batch` None: samples come one by one."""
        self._dataset: Any = dataset  # its key is a place
        self._items, self._batch = items, batch

    def epoch(self, number: int) -> Iterator[Batch]:
        """Batches, or samples."""
        samples: Iterator[Batch] = (self._dataset[number, position] for position in range(self._items))
        while together := list(islice(samples, self._batch or 1)):
            yield _convert(together[0]) if self._batch is None else default_collate(together)

    def close(self) -> None:
        """There is nothing to end."""

    def told(self) -> list[str]:
        """Nothing."""
        return []
