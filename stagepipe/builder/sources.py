"""`from_source` and `from_dataset`: how a builder begins. Run in the user's process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, Unpack, overload

from stagepipe.api import SourceOptions
from stagepipe.builder.parameters import Dataset, Source, SupportsGetItem
from stagepipe.builder.pipeline_builder import PipelineBuilder
from stagepipe.builder.targets import format_call
from stagepipe.config import PythonCall, check_call
from stagepipe.core import Deferred, UsageError, folds_frames, is_class_or_classmethod

T = TypeVar("T")
U = TypeVar("U")


@overload
def from_source(source: str, /, **options: Unpack[SourceOptions]) -> PipelineBuilder[Any]: ...
@overload
def from_source(source: Deferred[Iterable[T]], /, **options: Unpack[SourceOptions]) -> PipelineBuilder[T]: ...
@overload
def from_source(source: Deferred[SupportsGetItem[T]], /, **options: Unpack[SourceOptions]) -> PipelineBuilder[T]: ...
@overload
def from_source(source: Source[T], /, **options: Unpack[SourceOptions]) -> PipelineBuilder[T]: ...
@folds_frames
def from_source(source: Any, /, **options: Unpack[SourceOptions]) -> PipelineBuilder[Any]:
    """Begin a pipeline with a source of items.

    Args:
        source: an object with `__len__` and `__getitem__` (a list, a range, a map-style dataset), an iterable that can
            be read more than once, a function that returns an iterable, `defer(Class, ...)`, or an import path. It is
            read in one process. For a dataset whose `__getitem__` is slow, use `from_dataset`.
        options: those of a source, such as `retries` and `on_error` for items that cannot be read; those of processes,
            such as `workers=4`, only for one that is read by index: a record source (`stagepipe.sources.parquet`).

    >>> from_source(range(3)).take(2)
    [0, 1]

    Raises UsageError for a class, which needs `defer`.
    """
    uses, arguments = _split_source(source)
    settings = {"uses": uses, **({"with": arguments} if arguments else {}), **options}
    call = PythonCall(format_call("from_source", source, **options), "source", settings)
    check_call(call)
    return PipelineBuilder((call,))


@overload
def from_dataset(
    dataset: str,
    /,
    *,
    shuffle: bool = False,
    sampler: Any = None,
    batch_sampler: Any = None,
    batch_size: int | None = None,
    drop_last: bool = False,
    collate_fn: Any = None,
    worker_init_fn: Any = None,
    shards: int | None = None,
    **options: Unpack[SourceOptions],
) -> PipelineBuilder[Any]: ...
@overload
def from_dataset(
    dataset: Dataset[T],
    /,
    *,
    shuffle: bool = False,
    sampler: Any = None,
    batch_sampler: None = None,
    batch_size: None = None,
    drop_last: Literal[False] = False,
    collate_fn: None = None,
    worker_init_fn: Any = None,
    shards: int | None = None,
    **options: Unpack[SourceOptions],
) -> PipelineBuilder[T]: ...
@overload
def from_dataset(
    dataset: Dataset[T],
    /,
    *,
    batch_sampler: Any,
    collate_fn: Callable[[list[T]], U],
    worker_init_fn: Any = None,
    **options: Unpack[SourceOptions],
) -> PipelineBuilder[U]: ...
@overload
def from_dataset(
    dataset: Dataset[T],
    /,
    *,
    shuffle: bool = False,
    sampler: Any = None,
    batch_size: int,
    drop_last: bool = False,
    collate_fn: Callable[[list[T]], U],
    worker_init_fn: Any = None,
    shards: int | None = None,
    **options: Unpack[SourceOptions],
) -> PipelineBuilder[U]: ...
@overload
def from_dataset(
    dataset: Dataset[Any],
    /,
    *,
    shuffle: bool = False,
    sampler: Any = None,
    batch_sampler: Any = None,
    batch_size: int | None = None,
    drop_last: bool = False,
    collate_fn: Any = None,
    worker_init_fn: Any = None,
    shards: int | None = None,
    **options: Unpack[SourceOptions],
) -> PipelineBuilder[Any]: ...
@folds_frames
def from_dataset(  # noqa: PLR0913 - those of a DataLoader
    dataset: Any,
    /,
    *,
    shuffle: bool = False,
    sampler: Any = None,
    batch_sampler: Any = None,
    batch_size: int | None = None,
    drop_last: bool = False,
    collate_fn: Any = None,
    worker_init_fn: Any = None,
    shards: int | None = None,
    **options: Unpack[SourceOptions],
) -> PipelineBuilder[Any]:
    """Begin a pipeline with a dataset whose `__getitem__` runs in workers, as in a `torch.utils.data.DataLoader`.

    One process draws the order; the workers of the source, which `options` configure, read the samples.

    Args:
        dataset: a map-style dataset (`__len__` and `__getitem__`) or an iterable one; or, so that each worker builds
            its own, its class, `defer(Class, ...)`, a function that returns it, or an import path.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch.
        sampler: an iterable of indices, instead of `shuffle`.
        batch_sampler: an iterable of lists of indices, instead of `shuffle`, `sampler` and `batch_size`.
        batch_size: the number of samples of a batch, which is made in the workers. None: each sample is an item.
            Quicker than `.batch`, by 1.1 to 2.5 times where we measured it; a batch is then one item, which is seeded,
            retried and skipped as a whole.
        drop_last: drop a last batch that is shorter.
        collate_fn: makes a batch of a list of samples. Default: as `.batch` does.
        worker_init_fn: called once in each worker with its number.
        shards: how often an iterable dataset is iterated over, each time with another `id` of `get_worker_info()`. Then
            it may be read in several workers.
        options: the options of the source, such as `workers=8`. An iterable dataset without `shards` takes none of
            processes: one process reads it.

    >>> samples = from_dataset(["a", "b", "c"], shuffle=True, workers=2)
    >>> sorted(samples.take(3))
    ['a', 'b', 'c']
    >>> from_dataset([10, 20, 30], batch_size=2, collate_fn=sum).take(2)
    [30, 30]
    """
    given = {
        "shuffle": shuffle or None,
        "sampler": sampler,
        "batch_sampler": batch_sampler,
        "batch_size": batch_size,
        "drop_last": drop_last or None,
        "collate_fn": collate_fn,
        "worker_init_fn": worker_init_fn,
        "shards": shards,
    }
    shown = {name: value for name, value in given.items() if value is not None}
    text = format_call("from_dataset", dataset, **shown, **options)
    source = PythonCall(
        text, "source", {"uses": "stagepipe.sources.dataset", "with": {"dataset": dataset, **shown}, **options}
    )
    check_call(source, given)
    return PipelineBuilder((source,))


def _split_source(source: Any) -> tuple[Any, Any]:
    """Return `uses` and `with` of a source."""
    if isinstance(source, Deferred):
        return source.target, source.arguments
    if isinstance(source, functools.partial) and not source.args and not is_class_or_classmethod(source.func):
        return source.func, source.keywords
    if is_class_or_classmethod(source):
        label = source.__qualname__
        raise UsageError(f"from_source({label}): `{label}` is a class; write from_source(defer({label}, ...))")
    return source, {}
