"""The contestants: two stages, one worker each, that make an array and look at it. In the process that measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final

import numpy as np

from stagepipe import Pipeline

BATCH_ITEMS: Final = 10
"""Rows of a batch of Ray Data, and CPUs below one for an actor: what gave it most on two CPUs."""
ACTOR_CPUS: Final = 0.5


class MakeArray:
    """Makes an item with an array of `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        """Set the size."""
        self.nbytes = nbytes

    def __call__(self, number: int) -> dict[str, Any]:
        """Return the item of a number."""
        return {"id": number, "image": np.full(self.nbytes, number % 251, np.uint8)}


def look(item: dict[str, Any]) -> dict[str, Any]:
    """Look at the first byte, and pass the item on."""
    assert item["image"][0] == item["id"] % 251
    return item


class MakeArrays(MakeArray):
    """The same for a batch of Ray Data."""

    def __call__(self, batch: Any) -> Any:
        """Return the columns of a batch."""
        return {
            "id": batch["id"],
            "image": np.stack([super(MakeArrays, self).__call__(n)["image"] for n in batch["id"]]),
        }


class LookAtAll:
    """The same for a batch of Ray Data."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Look at each row."""
        for number, image in zip(batch["id"], batch["image"], strict=True):
            look({"id": number, "image": image})
        return batch


def iter_pipeline(items: int, nbytes: int, engine: str) -> Iterator[int]:
    """Yield the count of items that each step of a pipeline gives."""
    config = {
        "engine": engine,
        "source": {"uses": range(items)},
        "stages": [
            {"name": "make", "uses": MakeArray, "with": {"nbytes": nbytes}},
            {"name": "look", "uses": look},
        ],
    }
    with Pipeline(config) as pipeline:
        for item in pipeline:
            assert item["image"].nbytes == nbytes
            yield 1


def iter_ray_data(items: int, nbytes: int) -> Iterator[int]:
    """Yield the count of items of each batch of Ray Data, written as its documentation says, in order."""
    import ray

    strategy = ray.data.ActorPoolStrategy(size=1)
    options: dict[str, Any] = {"batch_size": BATCH_ITEMS, "compute": strategy, "num_cpus": ACTOR_CPUS}
    dataset = (
        ray.data.range(items, override_num_blocks=max(items // BATCH_ITEMS, 1))
        .map_batches(MakeArrays, fn_constructor_args=(nbytes,), **options)
        .map_batches(LookAtAll, **options)
    )
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False
    for batch in dataset.iter_batches(batch_size=None):
        yield len(batch["id"])


CONTESTANTS: Final[dict[str, Callable[[int, int], Iterator[int]]]] = {
    "local": lambda items, nbytes: iter_pipeline(items, nbytes, "local"),
    "ray data": iter_ray_data,
    "engine: ray": lambda items, nbytes: iter_pipeline(items, nbytes, "ray"),
}


def measure_rate(name: str, items: int, nbytes: int) -> float:
    """Return the items per second from the first items on: without the start of processes."""
    counts = iter(CONTESTANTS[name](items, nbytes))
    first = next(counts)
    started = perf_counter()
    rest = sum(counts)
    elapsed = perf_counter() - started
    assert first + rest == items, f"{name}: {first + rest} of {items} items"
    return rest / elapsed
