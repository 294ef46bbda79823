"""The contestants: two stages, one worker each, that make an array and look at it. In the process that measures."""

from __future__ import annotations

import json
import pickle
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.common.turn import TreeClocks
from stagepipe import Pipeline

ACTOR_CPUS: Final = 0.5
"""With whole CPUs, two actors would leave none of two CPUs to the source."""
CUTS: Final = ((1, 1, 128), (8, 8, 128), (64, 64, 128), (8, 64, 128), (8, 64, 32), (1, 64, 32))
"""Rows of a batch, rows of a read task, and MiB of a block of Ray Data, whose default is 128. `choose_cut` takes the
fastest."""
_MIN_BATCHES: Final = 5


@dataclass(frozen=True)
class Job:
    """`count` items of `nbytes`; each stage works for `work_ms` of CPU time on each. `cut`: see `CUTS`."""

    count: int
    nbytes: int
    work_ms: float
    cut: tuple[int, int, int] = CUTS[0]


def work(milliseconds: float) -> None:
    """Use the CPU for some time; on a busy machine it takes longer."""
    end_ns = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < end_ns:
        pass


class MakeArray:
    """A stage that makes an item with an array of `nbytes`."""

    def __init__(self, nbytes: int, work_ms: float) -> None:
        """Set the size, and the work on an item."""
        self.nbytes = nbytes
        self.work_ms = work_ms

    def __call__(self, number: int) -> dict[str, Any]:
        """Return the item of a number."""
        work(self.work_ms)
        return {"id": number, "image": np.full(self.nbytes, number % 251, np.uint8)}


class Look:
    """A stage that reads the first byte and passes the item on."""

    def __init__(self, work_ms: float) -> None:
        """Set the work on an item."""
        self.work_ms = work_ms

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the item."""
        work(self.work_ms)
        assert item["image"][0] == item["id"] % 251
        return item


class MakeColumns(MakeArray):
    """The same for a batch of Ray Data."""

    def __call__(self, batch: Any) -> Any:
        """Return the columns of a batch."""
        images = np.empty((len(batch["id"]), self.nbytes), np.uint8)
        for image, number in zip(images, batch["id"], strict=True):
            work(self.work_ms)
            image[:] = number % 251
        return {"id": batch["id"], "image": images}


class LookAtColumns(Look):
    """The same for a batch of Ray Data."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Look at each row."""
        for number, image in zip(batch["id"], batch["image"], strict=True):
            super().__call__({"id": number, "image": image})
        return batch


class MakeItems(MakeArray):
    """The same for a table of Ray Data, with items of any type: pickled, and each made with its own seed."""

    def __call__(self, batch: Any) -> Any:
        """Return the pickled items of a table of numbers."""
        numbers = batch.column("id").to_pylist()
        return pack_items([_seeded(number, super(MakeItems, self).__call__, number) for number in numbers])


class LookAtItems(Look):
    """The same for a table of Ray Data, with items of any type."""

    def __call__(self, batch: Any) -> Any:
        """Look at each item."""
        return pack_items(
            [_seeded(item["id"], super(LookAtItems, self).__call__, item) for item in unpack_items(batch)]
        )


def _seeded(number: int, stage: Callable[[Any], Any], item: Any) -> Any:
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - stages draw from it
    return stage(item)


def pack_items(items: Sequence[Any]) -> Any:
    """Return a table of items of any type: their pickles, and the bytes of their arrays."""
    import pyarrow as pa

    pickles, buffers = [], []
    for item in items:
        own_buffers: list[pickle.PickleBuffer] = []
        pickles.append(pickle.dumps(item, protocol=5, buffer_callback=own_buffers.append))
        buffers.append([buffer.raw() for buffer in own_buffers])
    binary = pa.large_binary()
    return pa.table({"item": pa.array(pickles, binary), "buffers": pa.array(buffers, pa.list_(binary))})


def unpack_items(table: Any) -> Iterator[Any]:
    """Yield the items of a table. Their arrays are views of it."""
    for pickled, buffers in zip(table.column("item"), table.column("buffers"), strict=True):
        yield pickle.loads(pickled.as_buffer(), buffers=[buffer.as_buffer() for buffer in buffers])


_CALLS_PER_SAMPLE: Final = 50
"""Samples between two looks at the clocks of all processes. CPU time after a process's last sample is lost."""


@dataclass(frozen=True)
class Speed:
    """Items per second, and CPU seconds per item: from the first item on, so without the start of processes."""

    items_per_s: float
    cpu_s_per_item: float


class Stopwatch:
    """Counts items from the first arrival to the last. The CPU time covers this process and all descendants."""

    def __init__(self, total: int) -> None:
        """`total` items will come: at the last one, the processes that made them are still alive."""
        self._left = total
        self._count = 0
        self._calls = 0
        self._clocks: TreeClocks | None = None
        self._speed: Speed | None = None

    def count(self, items: int = 1) -> None:
        """Count items that have arrived together; the first call starts the clock."""
        self._left -= items
        if self._clocks is None:
            self._clocks = TreeClocks()
            return
        self._count += items
        self._calls += 1
        if self._calls % _CALLS_PER_SAMPLE == 0:
            self._clocks.sample()
        if not self._left:
            wall_s, cpu_s, _ = self._clocks.measure()
            self._speed = Speed(self._count / wall_s, cpu_s / self._count)

    def read(self) -> Speed:
        """Return the speed once all have come."""
        assert self._speed is not None, f"{self._left} items are missing, or all came at once"
        return self._speed


class StopwatchSink:
    """A sink that writes the speed of its items to a file in the folder `path`."""

    def __init__(self, path: str, total: int) -> None:
        self._folder = Path(path)
        self._watch = Stopwatch(total)

    def __call__(self, _item: Any) -> None:
        """Count an item."""
        self._watch.count()

    def close(self) -> None:
        """Write the speed."""
        speed = self._watch.read()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "speed.json").write_text(json.dumps([speed.items_per_s, speed.cpu_s_per_item]))


def _make_config(job: Job) -> dict[str, Any]:
    here = "benchmarks.engines"
    return {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": job.count}},
        "stages": [
            {"name": "make", "uses": f"{here}.MakeArray", "with": {"nbytes": job.nbytes, "work_ms": job.work_ms}},
            {"name": "look", "uses": f"{here}.Look", "with": {"work_ms": job.work_ms}},
        ],
    }


def measure_pipeline(job: Job, engine: str) -> Speed:
    """Iterate a pipeline in this process."""
    watch = Stopwatch(job.count)
    with Pipeline({**_make_config(job), "engine": engine}) as pipeline:
        for item in pipeline:
            assert item["image"].nbytes == job.nbytes
            watch.count()
        return watch.read()


def measure_islands(job: Job) -> Speed:
    """Run the same to a sink with `inside: local`: one island, on this machine. Its CPU time excludes Ray's own."""
    from stagepipe.cluster import IslandOptions, run_islands

    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        sink = {"uses": "benchmarks.engines.StopwatchSink", "with": {"path": folder, "total": job.count}}
        config = Path(folder, "islands.yaml")
        config.write_text(yaml.safe_dump({**_make_config(job), "sink": sink, "engine": {"ray": {"inside": "local"}}}))
        (result,) = run_islands(config, IslandOptions())
        assert not result.error, result.error
        return Speed(*json.loads(Path(folder, "island-0-of-1", "speed.json").read_text()))


def measure_columns(job: Job) -> Speed:
    """Run the same on Ray Data, as its documentation advises, in order: rows are columns of arrays."""
    watch = Stopwatch(job.count)
    for batch in _make_dataset(job, MakeColumns, LookAtColumns, "numpy").iter_batches(batch_size=None):
        watch.count(len(batch["id"]))
    return watch.read()


def measure_items(job: Job) -> Speed:
    """Run the same on Ray Data, in order, with items of any type, which reach the caller unchanged."""
    watch = Stopwatch(job.count)
    dataset = _make_dataset(job, MakeItems, LookAtItems, "pyarrow")
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        for item in unpack_items(table):
            assert item["image"].nbytes == job.nbytes
        watch.count(table.num_rows)
    return watch.read()


def _make_dataset(job: Job, make: type, look: type, batch_format: str) -> Any:
    import ray

    batch_items, read_items, block_mib = job.cut
    options: dict[str, Any] = {
        "batch_size": batch_items,
        "batch_format": batch_format,
        "compute": ray.data.ActorPoolStrategy(size=1),
        "num_cpus": ACTOR_CPUS,
    }
    dataset = (
        ray.data.range(job.count, override_num_blocks=-(-job.count // read_items))
        .map_batches(make, fn_constructor_args=(job.nbytes, job.work_ms), **options)
        .map_batches(look, fn_constructor_args=(job.work_ms,), **options)
    )
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = block_mib << 20
    return dataset


def choose_cut(job: Job, name: str) -> tuple[int, int, int]:
    """Return the fastest cut for a contestant written for Ray Data, measured with a third of the items."""
    count = job.count // 3
    cuts = [cut for cut in CUTS if max(cut[:2]) * _MIN_BATCHES <= count or cut[0] == 1]
    speeds = {cut: CONTESTANTS[name](replace(job, count=count, cut=cut)).items_per_s for cut in cuts}
    return max(speeds, key=speeds.__getitem__)


LOCAL: Final = "local"
RAY_DATA: Final = "Ray Data"
RAY_DATA_ITEMS: Final = "Ray Data, any item, seeded"
ENGINE_RAY: Final = "engine: ray"
ISLANDS: Final = "islands"

LONGER: Final = {LOCAL: 2, ISLANDS: 2}
"""Factors for the number of items, so that a turn of these takes as long as one of Ray Data."""

CONTESTANTS: Final[dict[str, Callable[[Job], Speed]]] = {
    LOCAL: lambda job: measure_pipeline(job, "local"),
    ISLANDS: measure_islands,
    RAY_DATA: measure_columns,
    RAY_DATA_ITEMS: measure_items,
    ENGINE_RAY: lambda job: measure_pipeline(job, "ray"),
}
