"""The nodes of torchdata.nodes, each a pipeline of all nodes before it, as `docs/coming-from.md` maps them.

A chain of nodes is a chain of builder calls. The node that a test reads opens it: with processes, always. torchdata's
`Loader` stays, and so do nodes that a test writes itself: they are read as a stream.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

from torchdata.nodes.base_node import BaseNode

import stagepipe
from suite_adapters.faults import spoil
from suite_adapters.groups import Groups
from suite_adapters.uses import count_use


class _Indices:
    """A dataset whose samples are their own indices."""

    def __getitem__(self, index: Any) -> Any:
        return index


class NodeStream:
    """A node of a test as a stream: an epoch depends on its number alone, so a copy of the node is reset so often."""

    def __init__(self, node: Any) -> None:
        self._first = node
        self._node = node
        self._state: Any = None

    def set_epoch(self, epoch: int) -> None:
        self._node = copy.deepcopy(self._first)
        for _ in range(epoch):
            self._node.reset()

    def __iter__(self) -> Iterator[Any]:
        self._node.reset(self._state)
        self._state = None
        return iter(self._node)

    def state_dict(self) -> dict[str, Any]:
        return self._node.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state


class _Node(BaseNode[Any]):
    """A node whose items come from the pipeline of `builder`."""

    def __init__(self, builder: Any, *, limit: int | None = None, pin_memory: bool = False) -> None:
        super().__init__()
        count_use("made")
        self.builder = builder
        self._loader: Any = None
        self._items: Iterator[Any] = iter(())
        self._is_at_end = False
        self._options = {"limit": limit, "pin_memory": pin_memory}

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if self._loader is None:
            count_use("processes")
            options = {"attach": False, "preload": [name for name in ("nodes.utils",) if name in sys.modules]}
            self._loader = self.builder.with_options(**options).loader(**self._options)
        self._is_at_end = False
        if initial_state is not None:
            self._loader.load_state_dict(initial_state["pipeline"])
            self._is_at_end = initial_state["is_at_end"]
        self._items = iter(()) if self._is_at_end else spoil(iter(self._loader))

    @property
    def epoch(self) -> int:
        return self._loader.epoch

    def next(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            self._is_at_end = True
            raise

    def get_state(self) -> dict[str, Any]:
        return {"pipeline": self._loader.state_dict(), "is_at_end": self._is_at_end}


def _build(node: Any) -> Any:
    return node.builder if isinstance(node, _Node) else stagepipe.from_dataset(NodeStream(node))


def IterableWrapper(iterable: Any) -> _Node:  # noqa: N802 - named as what they replace
    return _Node(stagepipe.from_source(iterable))


def MapStyleWrapper(map_dataset: Any, sampler: Any) -> _Node:  # noqa: N802
    return _Node(stagepipe.from_dataset(map_dataset, sampler=sampler, workers=2))


def SamplerWrapper(sampler: Any) -> _Node:  # noqa: N802
    return _Node(stagepipe.from_dataset(_Indices(), sampler=sampler, workers=2))


def Mapper(source: Any, map_fn: Any) -> _Node:  # noqa: N802
    return _Node(_build(source).map(map_fn, fuse=True))


def ParallelMapper(  # noqa: N802, PLR0917 - as the class that it replaces
    source: Any,
    map_fn: Any,
    num_workers: int,
    in_order: bool = True,
    method: str = "thread",
    multiprocessing_context: str | None = None,
    max_concurrent: int | None = None,
    snapshot_frequency: int = 1,
    prebatch: int | None = None,
) -> _Node:
    builder = _build(source).map(map_fn, workers=num_workers)
    return _Node(builder if in_order else builder.with_options(order="any"))


def Filter(source: Any, filter_fn: Any) -> _Node:  # noqa: N802
    return _Node(_build(source).filter(filter_fn, fuse=True))


def Batcher(source: Any, batch_size: int, drop_last: bool = True) -> _Node:  # noqa: N802
    return _Node(_build(source).map(stagepipe.defer(Groups, size=batch_size, drop_last=drop_last)))


def Unbatcher(source: Any) -> _Node:  # noqa: N802
    return _Node(_build(source).flat_map(iter))


def Header(source: Any, n: int) -> _Node:  # noqa: N802
    return _Node(_build(source), limit=n)


def Prefetcher(source: Any, prefetch_factor: int, snapshot_frequency: int = 1) -> _Node:  # noqa: N802
    return _Node(_build(source))


def PinMemory(source: Any, pin_memory_device: str = "", snapshot_frequency: int = 1) -> _Node:  # noqa: N802
    return _Node(_build(source), pin_memory=True)
