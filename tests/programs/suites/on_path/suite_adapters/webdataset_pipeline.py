"""`WebDataset` and `DataPipeline` on stagepipe: its source of tar files, and a stage for each of webdataset's filters.

A filter of single samples (`decode`, `rename`, `to_tuple`, `select`) is called in a worker with one sample: these are
webdataset's own functions, as a user keeps his. What moves samples between groups is a stage of stagepipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Self

import webdataset
from webdataset import filters, shardlists

import stagepipe
from stagepipe import defer
from stagepipe.sources import webdataset as read_samples
from suite_adapters.faults import spoil
from suite_adapters.groups import Groups
from suite_adapters.uses import count_use

_GROUPED = {
    "shuffle": "shuffle",
    "_shuffle": "shuffle",
    "_batched": "batched",
    "islice": "slice",
    "tarfile_samples": "",
}


class PerSample:
    """A filter of webdataset, called with a stream of one sample."""

    def __init__(self, filter_: Any) -> None:
        self._filter = filter_

    def __call__(self, sample: Any) -> Iterator[Any]:
        return iter(self._filter(iter([sample])))


class _Pipeline:
    """A pipeline of webdataset's stages. Immutable, but for the processes that read it."""

    def __init__(self, builder: Any, read: Callable[[Any], Iterator[Any]], length: int | None = None) -> None:
        count_use("made")
        self.builder = builder
        self._read = read
        self._length = length
        self._opened: Any = None

    def __iter__(self) -> Iterator[Any]:
        count_use("processes")
        if self._opened is None:
            self._opened = self.builder.with_options(attach=False).open()
        return spoil(iter(self._read(self._opened)))

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the number of samples is not known")
        return self._length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()

    def _with(self, builder: Any) -> _Pipeline:
        return _Pipeline(builder, self._read)

    def _with_read(self, read: Callable[[Any], Iterator[Any]]) -> _Pipeline:
        return _Pipeline(self.builder, read)

    def compose(self, *stages: Any) -> _Pipeline:
        """Add stages as DataPipeline takes them."""
        result = self
        for stage in stages:
            result = result._add(stage)
        return result

    def _add(self, stage: Any) -> _Pipeline:
        if not isinstance(stage, filters.FilterFunction):
            return self if stage is webdataset.tarfile_samples else self._with(self.builder.flat_map(PerSample(stage)))
        kind, arguments = _GROUPED.get(stage.f.__name__), dict(stage.kw)
        if kind == "":
            return self
        if kind is not None:
            return getattr(self, kind)(*stage.args, **arguments)
        handler = arguments.get("handler")
        options: dict[str, Any] = {"on_error": "skip"} if handler is webdataset.ignore_and_continue else {}
        if options:
            arguments["handler"] = filters.reraise_exception
        return self._with(
            self.builder.flat_map(PerSample(filters.FilterFunction(stage.f, *stage.args, **arguments)), **options)
        )

    def shuffle(self, size: int, **_: Any) -> _Pipeline:
        return self._with(self.builder.shuffle(size)) if size > 0 else self

    def batched(
        self, batchsize: int, collation_fn: Any = filters.default_collation_fn, partial: bool = True
    ) -> _Pipeline:
        stage = defer(Groups, size=batchsize, drop_last=not partial, function=collation_fn)
        return self._with(self.builder.map(stage))

    def listed(self, batchsize: int, partial: bool = True) -> _Pipeline:
        return self.batched(batchsize, None, partial)

    def slice(self, *arguments: int) -> _Pipeline:
        return self._with_read(lambda items: islice(self._read(items), *arguments))

    def repeat(self, nepochs: int | None = None, nbatches: int | None = None) -> _Pipeline:
        def read(items: Any) -> Iterator[Any]:
            epochs = range(nepochs) if nepochs is not None else iter(int, 1)
            return islice((item for _ in epochs for item in self._read(items)), nbatches)

        return self._with_read(read)

    def with_epoch(self, nsamples: int) -> _Pipeline:
        return self.repeat(nbatches=nsamples)

    def with_length(self, n: int) -> _Pipeline:
        return _Pipeline(self.builder, self._read, n)

    def __getattr__(self, name: str) -> Any:
        if name == "decode":  # WebDataset's takes names of decoders, as `filters.decode` does
            return lambda *arguments, **options: self._add(filters.decode(*arguments, **options))
        found = getattr(filters, name, None) if not name.startswith("_") else None
        if not isinstance(found, filters.RestCurried):
            raise AttributeError(name)  # noqa: TRY004 - of `__getattr__`
        return lambda *arguments, **options: self._add(found(*arguments, **options))


def _read_tars(urls: Any, *, shuffle: bool = False) -> _Pipeline:
    paths = shardlists.expand_urls(os.path.expandvars(urls)) if isinstance(urls, str) else list(urls)
    order: Any = "blocks" if shuffle else False
    return _Pipeline(stagepipe.from_source(defer(read_samples, paths, decode=False, shuffle=order)), iter)


def WebDataset(urls: Any, *, shardshuffle: Any = None, **_: Any) -> _Pipeline:  # noqa: N802 - named as what it replaces
    return _read_tars(urls, shuffle=bool(shardshuffle))


def DataPipeline(*stages: Any) -> Any:  # noqa: N802
    first, *rest = stages
    if isinstance(first, shardlists.SimpleShardList):
        if any(getattr(stage, "f", stage) is webdataset.tarfile_samples for stage in rest):
            return _read_tars(first.urls).compose(*rest)
        return _Pipeline(stagepipe.from_source([{"url": url} for url in first.urls]), iter).compose(*rest)
    return _Pipeline(stagepipe.from_source(first), iter).compose(*rest)
