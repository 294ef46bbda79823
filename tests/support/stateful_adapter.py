"""A pytest plugin that runs pytorch/data's tests of StatefulDataLoader on stagepipe: `Adapter` replaces the class.

The adapter runs inline: the tests make thousands of loaders. It is for these tests only, and maps what they use.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any

import torchdata.stateful_dataloader
import torchdata.stateful_dataloader.stateful_dataloader
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from stagepipe import Pipeline
from stagepipe.stages import OrderPointStage


class Collate(OrderPointStage):
    """Collates the samples of a stream, as a DataLoader's fetcher does."""

    order_point = True

    def __init__(self, size: int, drop_last: bool, collate_fn: Any) -> None:
        self._size = size
        self._drop_last = drop_last
        self._collate_fn = collate_fn
        self._samples: list[Any] = []

    def add(self, value: Any, samples: int) -> bool:
        self._samples.append(value)
        return len(self._samples) == self._size

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        samples, self._samples = self._samples, []
        return [(self._collate_fn(samples), len(samples))] if samples else []

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        if self._drop_last:
            self._samples = []
        return self.flush(rng)

    def clear(self) -> None:
        self._samples = []


class Adapter:
    """`StatefulDataLoader` on a stagepipe pipeline."""

    def __init__(  # noqa: PLR0917 - as the class that it replaces
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        **_: Any,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        is_batched = batch_size is not None or batch_sampler is not None
        collate_fn = collate_fn or (default_collate if is_batched else default_convert)
        if isinstance(dataset, IterableDataset):
            config = _stream_config(dataset, batch_size, drop_last, collate_fn)
        else:
            sampler = sampler if sampler is not None else (RandomSampler if shuffle else SequentialSampler)(dataset)
            if batch_sampler is None and is_batched:
                batch_sampler = BatchSampler(sampler, batch_size, drop_last)
            self.sampler, self.batch_sampler = sampler, batch_sampler
            config = _map_config(dataset, sampler, batch_sampler, collate_fn)
        self.pipeline: Pipeline[Any] = Pipeline(config, inline=True)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pipeline)

    def __len__(self) -> int:
        return len(self.pipeline)

    def state_dict(self) -> dict[str, Any]:
        return self.pipeline.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.pipeline.load_state_dict(state_dict, allow_changed=True)


def _stream_config(dataset: Any, batch_size: int | None, drop_last: bool, collate_fn: Any) -> dict[str, Any]:
    def read() -> Any:
        return iter(copy.deepcopy(dataset))

    stage: dict[str, Any] = {"name": "collate", "uses": Collate}
    stage["with"] = {"size": batch_size, "drop_last": drop_last, "collate_fn": collate_fn}
    if batch_size is None:
        stage = {"name": "convert", "uses": collate_fn}
    return {"name": "stream", "source": {"uses": read}, "stages": [stage]}


def _map_config(dataset: Any, sampler: Any, batch_sampler: Any, collate_fn: Any) -> dict[str, Any]:
    source: dict[str, Any] = {"dataset": dataset}
    stages = []
    if batch_sampler is None:
        source["sampler"] = sampler
        stages = [{"name": "convert", "uses": collate_fn}]
    else:
        source |= {"batch_sampler": batch_sampler, "collate_fn": collate_fn}
    return {
        "name": "map",
        "source": {"uses": "stagepipe.sources.dataset", "with": source},
        "stages": stages,
    }


for module in (torchdata.stateful_dataloader, torchdata.stateful_dataloader.stateful_dataloader):
    module.StatefulDataLoader = Adapter  # type: ignore[misc,assignment]
