"""`from_source`, `from_dataset` and `PipelineBuilder`: a pipeline as a chain of typed calls.

Runs in the user's process; starts nothing by itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    Never,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from stagepipe.api import Pipeline, RunOptions, SinkOptions, SourceOptions, StageOptions, open_shards, run_to_sink
from stagepipe.builder.targets import CallTarget, format_argument, format_call, get_parameters, make_target, write_calls
from stagepipe.config import PythonCall, check_call, load
from stagepipe.core import (
    Deferred,
    Skip,
    UsageError,
    folds_frames,
    folds_frames_of_methods,
    is_class_or_classmethod,
    make_html_table,
)
from stagepipe.forecast import Forecast
from stagepipe.plan import EvenMode
from stagepipe.report import LiveRun, Report

if TYPE_CHECKING:
    import torch

    from stagepipe.torch import Loader


T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


class SupportsGetItem(Protocol[T_co]):
    """A map-style dataset or sequence: `__len__` and `__getitem__`."""

    def __getitem__(self, index: int, /) -> T_co: ...


class LoaderOptions(TypedDict, total=False):
    """The options of `stagepipe.torch.Loader`."""

    rank: int | Literal["auto"] | None
    world_size: int | None
    even: EvenMode | None
    pin_memory: bool
    device: torch.device | str | int | None
    limit: int | None
    inline: bool
    share: Literal["node"] | None
    local_rank: int | None
    local_world_size: int | None


Source: TypeAlias = Iterable[T] | SupportsGetItem[T] | Callable[[], Iterable[T]]
Dataset: TypeAlias = (
    Iterable[T]
    | SupportsGetItem[T]
    | Callable[[], Iterable[T] | SupportsGetItem[T]]
    | Deferred[Iterable[T]]
    | Deferred[SupportsGetItem[T]]
)
Awaited: TypeAlias = Coroutine[Any, Any, U | Skip]
"""The type of a call of an `async def` stage."""


_RESERVED_STAGE_NAMES: Final = ("source", "sink")


@folds_frames_of_methods
class PipelineBuilder(Generic[T_co]):
    """An immutable pipeline under construction, with items of type `T_co`; each call returns a new builder.

    >>> from stagepipe import from_source
    >>> numbers = from_source(range(100)).map(lambda number: number * number).filter(lambda number: number % 2)
    >>> numbers.take(3)
    [1, 9, 25]
    >>> batches = numbers.batch(10)
    >>> with batches.open(inline=True) as pipeline:
    ...     sum(len(batch) for batch in pipeline)
    50

    A stage is anything that can be called with an item: a function, a lambda, a function from a notebook cell, an
    instance, `defer(Class, ...)` (built once in each worker), `functools.partial`, or an import path such as
    `"my_ops.decode"`. A class without `__call__`, such as `int`, is called with each item.

    Stages are named after their functions; a repeated name gets a number. Every stage takes `StageOptions`, such as
    `workers`, `timeout`, `on_error` and `fuse`. `fuse=True` runs a stage in the process of the previous stage or the
    source.

    Each call raises an error for an unknown option. `open`, `run`, `take`, `loader`, `forecast` and `to_yaml` check
    everything else and raise ConfigError with all problems at once.
    """

    def __init__(self, calls: Sequence[PythonCall]) -> None:
        self._calls: Final = tuple(calls)

    @property
    def python_calls(self) -> Sequence[PythonCall]:
        """The calls so far, in the form that `stagepipe.config` reads."""
        return self._calls

    # ------------------------------------------------------------------ stages

    @overload
    def map(self, function: str, /, **options: Unpack[StageOptions]) -> PipelineBuilder[Any]: ...
    @overload
    def map(
        self,
        function: Callable[[T_co], Awaited[U]] | Deferred[Callable[[T_co], Awaited[U]]],
        /,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def map(
        self,
        function: Callable[[T_co], U | Skip] | Deferred[Callable[[T_co], U | Skip]],
        /,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[U]: ...
    def map(self, function: Any, /, **options: Unpack[StageOptions]) -> PipelineBuilder[Any]:
        """Replace each item by the result of a function.

        With `into`, the result becomes a field of the item instead. With `when`, items that do not match pass by
        unchanged. An `async def` is awaited, with `concurrency` calls in progress in each worker.

        Raises UsageError for a generator function (use `flat_map`) and for a class with `__call__` (use `defer`).

        >>> from stagepipe import from_source
        >>> from_source(["1", "2"]).map(int).take(2)
        [1, 2]
        >>> from_source([{"x": 1}, {"x": 5}]).map(lambda item: item["x"] + 1, into="y", when={"x": {"ge": 5}}).take(2)
        [{'x': 1}, {'x': 5, 'y': 6}]
        """
        target = _make_item_target(function, "map")
        return self._add_stage(format_call(".map", function, **options), target, options)

    def map_field(
        self,
        field: str | dict[str, str],
        function: Callable[..., Any] | Deferred[Callable[..., Any]] | str,
        /,
        *,
        as_: Literal["numpy", "tensor", "pil"] | None = None,
        batch_size: int | None = None,
        max_wait: float | str | None = None,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[T_co]:
        """Replace one field of each dict item by the result of a function.

        Args:
            field: the field's name, or a dict of the function's arguments and their fields.
            function: the function to call.
            as_: convert the field to this type before the call.
            batch_size: call the function with lists of up to this number of values, as in `map_batches`.
            max_wait: how long to wait for a full list, in seconds or as `"20ms"`.
            options: `StageOptions`.

        >>> from stagepipe import from_source
        >>> from_source([{"word": "a", "label": 1}]).map_field("word", str.upper).take(1)
        [{'word': 'A', 'label': 1}]
        """
        target = _make_item_target(function, "map_field")
        given = {"as_": as_, "batch_size": batch_size, "max_wait": max_wait}
        shown = {name: value for name, value in given.items() if value is not None}
        text = format_call(".map_field", field, function, **shown, **options)
        conversion = {} if as_ is None else {"as": as_}
        return self._add_stage(
            text, target, options, {"field": field, **conversion, **_make_batch(batch_size, max_wait)}
        )

    @overload
    def flat_map(self, function: str, /, **options: Unpack[StageOptions]) -> PipelineBuilder[Any]: ...
    @overload
    def flat_map(
        self,
        function: Callable[[T_co], Iterable[U | Skip]] | Deferred[Callable[[T_co], Iterable[U | Skip]]],
        /,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def flat_map(
        self,
        function: Callable[..., Iterable[Any]] | Deferred[Callable[..., Iterable[Any]]] | str,
        /,
        *,
        field: str | dict[str, str],
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[T_co]: ...
    def flat_map(
        self, function: Any, /, *, field: str | dict[str, str] | None = None, **options: Unpack[StageOptions]
    ) -> PipelineBuilder[Any]:
        """Replace each item by the items that a generator function yields, or that a function returns as an iterable.

        With `field`, as in `map_field`, the function gets fields of a dict item, and each result goes into a copy of
        the item.

        >>> from stagepipe import from_source
        >>> from_source(["a b", "c"]).flat_map(str.split).take(3)
        ['a', 'b', 'c']
        """
        target = make_target(function, "flat_map")
        if not target.is_generator:
            target = CallTarget("stagepipe.stages.FlatMap", {"function": target.to_argument()}, target.name)
        settings = {} if field is None else {"field": field}
        return self._add_stage(format_call(".flat_map", function, **settings, **options), target, options, settings)

    @overload
    def map_batches(
        self,
        function: str,
        /,
        *,
        batch_size: int,
        max_wait: float | str | None = None,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[Any]: ...
    @overload
    def map_batches(
        self,
        function: Callable[[list[T_co]], Sequence[U | Skip]] | Deferred[Callable[[list[T_co]], Sequence[U | Skip]]],
        /,
        *,
        batch_size: int,
        max_wait: float | str | None = None,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[U]: ...
    def map_batches(
        self,
        function: Any,
        /,
        *,
        batch_size: int,
        max_wait: float | str | None = None,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[Any]:
        """Call a function with lists of items; it returns as many results, in order.

        Args:
            function: the function to call.
            batch_size: the maximum number of items in a list.
            max_wait: how long to wait for a full list, in seconds or as `"20ms"` (the default).
            options: `StageOptions`.

        A call that returns another number of results raises RunError.

        >>> from stagepipe import from_source
        >>> from_source([3, 4, 5]).map_batches(lambda numbers: [number + len(numbers) for number in numbers],
        ...                                    batch_size=3).take(3)
        [6, 7, 8]
        """
        target = _make_item_target(function, "map_batches")
        wait = {} if max_wait is None else {"max_wait": max_wait}
        text = format_call(".map_batches", function, batch_size=batch_size, **wait, **options)
        return self._add_stage(text, target, options, _make_batch(batch_size, max_wait))

    def filter(
        self,
        keep: Callable[[T_co], object] | Deferred[Callable[[T_co], object]] | str,
        /,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[T_co]:
        """Drop the items for which a function returns a falsy value.

        >>> from stagepipe import from_source
        >>> from_source(range(10)).filter(lambda number: number > 7).take(2)
        [8, 9]
        """
        target = _make_item_target(keep, "filter")
        target = CallTarget("stagepipe.stages.Filter", {"where": target.to_argument()}, target.name)
        return self._add_stage(format_call(".filter", keep, **options), target, options)

    def select(self, *fields: str, **options: Unpack[StageOptions]) -> PipelineBuilder[dict[str, Any]]:
        """Keep these fields of each item, in this order.

        >>> from stagepipe import from_source
        >>> from_source([{"x": 1, "y": 2}]).select("y").take(1)
        [{'y': 2}]
        """
        target = CallTarget("stagepipe.stages.Select", {"fields": list(fields)}, "select")
        return self._add_stage(format_call(".select", *fields, **options), target, options)

    def drop(self, *fields: str, **options: Unpack[StageOptions]) -> PipelineBuilder[dict[str, Any]]:
        """Remove these fields from each item; every item must have them.

        >>> from stagepipe import from_source
        >>> from_source([{"x": 1, "y": 2}]).drop("y").take(1)
        [{'x': 1}]
        """
        target = CallTarget("stagepipe.stages.Drop", {"fields": list(fields)}, "drop")
        return self._add_stage(format_call(".drop", *fields, **options), target, options)

    def rename(self, fields: Mapping[str, str], /, **options: Unpack[StageOptions]) -> PipelineBuilder[dict[str, Any]]:
        """Rename fields of each item; `fields` maps old names to new ones.

        >>> from stagepipe import from_source
        >>> from_source([{"x": 1, "y": 2}]).rename({"x": "z"}).take(1)
        [{'z': 1, 'y': 2}]
        """
        target = CallTarget("stagepipe.stages.Rename", {"fields": dict(fields)}, "rename")
        return self._add_stage(format_call(".rename", fields, **options), target, options)

    def shuffle(self, buffer_size: int, /, **options: Unpack[StageOptions]) -> PipelineBuilder[T_co]:
        """Yield each block of `buffer_size` items in random order, in one process.

        >>> from stagepipe import from_source
        >>> sorted(from_source(range(4)).shuffle(4).take(4))
        [0, 1, 2, 3]
        """
        target = CallTarget("stagepipe.stages.Shuffle", {"size": buffer_size}, "shuffle")
        return self._add_stage(format_call(".shuffle", buffer_size, **options), target, options)

    def batch(
        self,
        size: int,
        /,
        *,
        drop_last: bool = False,
        pad: float | Mapping[str, float] | None = None,
        pad_to: int | None = None,
        pad_to_multiple_of: int | None = None,
        lengths: bool = False,
        mask: bool = False,
        **options: Unpack[StageOptions],
    ) -> PipelineBuilder[Any]:
        """Collate `size` items into one of the same structure, with a new first axis, in one process.

        After `from_dataset`, its `batch_size` is faster, because the workers collate; here each sample remains an item.

        Args:
            size: items in a batch; the last batch of an epoch may be shorter.
            drop_last: drop the last batch if it is shorter.
            pad: the fill value for arrays of different lengths, or one per field. `stagepipe.stages.Batch` explains
                padding, and how each type is collated.
            pad_to: pad to this length. None: to the longest item of the batch.
            pad_to_multiple_of: pad to the next multiple of this number.
            lengths: add the lengths before padding.
            mask: add masks that are true for values and false for padding.
            options: `StageOptions`.

        >>> from stagepipe import from_source
        >>> from_source([{"x": 1}, {"x": 2}]).batch(2).take(1)
        [{'x': array([1, 2])}]
        """
        given = {
            "drop_last": drop_last,
            "pad": pad,
            "pad_to": pad_to,
            "pad_to_multiple_of": pad_to_multiple_of,
            "lengths": lengths,
            "mask": mask,
        }
        arguments = {name: value for name, value in given.items() if value is not None and value is not False}
        target = CallTarget("stagepipe.stages.Batch", {"size": size, **arguments}, "batch")
        return self._add_stage(format_call(".batch", size, **arguments, **options), target, options)

    def unbatch(self, **options: Unpack[StageOptions]) -> PipelineBuilder[Any]:
        """Yield one item per row of each batch; the inverse of `batch`.

        >>> from stagepipe import from_source
        >>> from_source([{"x": ["a", "b"]}]).unbatch().take(2)
        [{'x': 'a'}, {'x': 'b'}]
        """
        target = CallTarget("stagepipe.stages.Unbatch", {}, "unbatch")
        return self._add_stage(format_call(".unbatch", **options), target, options)

    def sink(
        self, sink: Callable[[T_co], object] | Deferred[Any] | str, /, **options: Unpack[SinkOptions]
    ) -> PipelineBuilder[T_co]:
        """Add a sink for the output of `run`; every sink gets every item, and only sinks may follow.

        A subclass of `stagepipe.sinks.PartSink`, such as `defer(JsonlSink, "out")`, writes in its own `workers`
        processes. Anything else is called with each item in this process; at the end, `run` calls its `close`, if any.

        >>> from stagepipe import from_source
        >>> items = []
        >>> report = from_source(range(3)).sink(items.append).run()
        >>> items
        [0, 1, 2]
        """
        target = make_target(sink, "sink")
        return self._add_call(PythonCall(format_call(".sink", sink, **options), "sink", {**target.settings, **options}))

    def with_options(self, **options: Unpack[RunOptions]) -> PipelineBuilder[T_co]:
        """Set `RunOptions` of the whole run; a later call replaces the options that it names.

        >>> from stagepipe import from_source
        >>> from_source(range(3)).with_options(seed=17, memory="1GB")
        from_source(range(0, 3)).with_options(seed=17, memory='1GB')
        """
        return self._add_call(PythonCall(format_call(".with_options", **options), "", dict(options)))

    # ------------------------------------------------------------------ use

    def to_yaml(self) -> str:
        """Return the YAML of this pipeline, for `stagepipe run`.

        Raises UsageError, with the stage, for values that YAML cannot hold: lambdas, functions defined in a function or
        in the running script, instances, tuples. Raises ConfigError if the pipeline is invalid.

        >>> from stagepipe import from_source
        >>> print(from_source(range(3)).map(len).to_yaml())  # doctest: +SKIP
        """
        load(self)  # checks the config
        return write_calls(self._calls)

    def forecast(self) -> Forecast:
        """Forecast the costs of stages and hops and the effect of changes; see `Pipeline.forecast`."""
        return Pipeline(self).forecast()

    def take(self, count: int, /) -> list[T_co]:
        """Return the first `count` items of the output; the stages run in this process.

        Raises RunError if a stage fails.
        """
        pipeline = Pipeline(self, inline=True)
        pipeline._saves_state = False  # noqa: SLF001 - it ends here, so a large source need not be fingerprinted
        with pipeline:
            return list(itertools.islice(pipeline, count))

    def run(
        self,
        *,
        limit: int | None = None,
        resume: bool = False,
        trace: str | Path | None = None,
        prometheus: str | int | None = None,
    ) -> Report:
        """Run one epoch into the sinks, if any, and return the report.

        Args:
            limit: end the epoch after this number of source items.
            resume: continue the run whose journal is in the folder of the first sink with workers. Without a journal,
                a new run starts.
            trace: see `Pipeline`.
            prometheus: see `Pipeline`.

        Raises RunError if the run or a sink fails, and UsageError if a folder cannot be used or its run has finished.
        """
        pipeline = Pipeline[Any](self, limit=limit, trace=trace, prometheus=prometheus)
        with open_shards(pipeline, resume=resume) as shards:
            if shards is not None and shards.is_finished:
                raise UsageError(shards.finished_message)
            with pipeline:
                run_to_sink(pipeline, _ignore_progress, shards=shards)
        return pipeline.report()

    def open(  # noqa: PLR0913 - the options of `Pipeline`
        self,
        *,
        inline: bool = False,
        limit: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        even: EvenMode | None = None,
        only: Sequence[int] | None = None,
        cache: bool = True,
        trace: str | Path | None = None,
        prometheus: str | int | None = None,
    ) -> Pipeline[T_co]:
        """Return a `Pipeline`, to iterate over in a `with` block.

        Args:
            inline: run all stages in this process.
            limit: the number of source items per epoch.
            rank: this process's part of the source, from 0.
            world_size: the number of ranks.
            even: `"pad"` or `"drop"` gives all ranks the same number of items.
            only: run only the source items with these numbers.
            cache: if False, stages with a `cache` neither read nor write it.
            trace: the file for a trace.
            prometheus: an address for metrics.

        See `Pipeline` for details and errors.

        >>> from stagepipe import from_source
        >>> with from_source(range(3)).open(inline=True, limit=2) as pipeline:
        ...     list(pipeline), list(pipeline)  # two epochs
        ([0, 1], [0, 1])
        """
        return Pipeline(
            self,
            inline=inline,
            limit=limit,
            rank=rank,
            world_size=world_size,
            even=even,
            only=only,
            cache=cache,
            trace=trace,
            prometheus=prometheus,
        )

    def loader(self, **options: Unpack[LoaderOptions]) -> Loader:
        """Return a `stagepipe.torch.Loader`, which yields torch tensors.

        Args:
            options: arguments of `Loader`, such as `rank="auto"` and `device="cuda"`.

        >>> from stagepipe import from_source
        >>> with from_source(range(4)).batch(2).loader(inline=True) as loader:
        ...     list(loader)
        [tensor([0, 1]), tensor([2, 3])]

        Raises ImportError if torch is missing or too old, and the errors of `Loader`.
        """
        from stagepipe.torch import Loader

        return Loader(self, **options)

    if not TYPE_CHECKING:  # for a type checker, a builder is not iterable

        def __iter__(self) -> Never:
            """Refuse: three epochs over a builder would restart the workers and repeat the shuffle of epoch 0."""
            raise UsageError(
                "a builder has no items; write `with builder.open() as pipeline:` and iterate over the pipeline, or "
                "call builder.take(3)"
            )

    def __repr__(self) -> str:
        return "".join(call.text for call in self._calls)

    def _repr_html_(self) -> str:
        """A small table of the calls, for notebooks."""
        rows = [
            (call.settings["name"] if call.section == "stages" else call.section or "options", call.text)
            for call in self._calls
        ]
        return make_html_table("PipelineBuilder", ("stage", "call"), rows)

    # ------------------------------------------------------------------ inside

    def _add_stage(
        self, text: str, target: CallTarget, options: StageOptions, settings: Mapping[str, Any] | None = None
    ) -> PipelineBuilder[Any]:
        """Add a stage. `text` is the call; `settings` are keys of the config that are not among the options."""
        self._refuse_after_sink(text)
        stage = {"name": self._find_free_name(target.name), **target.settings, **(settings or {}), **options}
        return self._add_call(PythonCall(text, "stages", stage))

    def _add_call(self, call: PythonCall) -> PipelineBuilder[Any]:
        """Add a call. Raises ConfigError if it has an option that there is not."""
        method = getattr(PipelineBuilder, call.text.removeprefix(".").partition("(")[0])
        check_call(call, get_parameters(method))
        return PipelineBuilder((*self._calls, call))

    def _find_free_name(self, name: str) -> str:
        used = {*_RESERVED_STAGE_NAMES, *(call.settings.get("name") for call in self._calls if call.section)}
        return next(free for n in itertools.count(1) if (free := name if n == 1 else f"{name}-{n}") not in used)

    def _refuse_after_sink(self, text: str) -> None:
        if any(call.section == "sink" for call in self._calls):
            raise UsageError(f"{text} follows .sink(...), after which only sinks may come; call it before")


def _make_item_target(function: Any, method: str) -> CallTarget:
    target = make_target(function, method)
    if target.is_generator:
        label = format_argument(function)
        raise UsageError(
            f".{method}({label}): a generator function yields several items per input; use .flat_map({label})"
        )
    return target


def _make_batch(batch_size: int | None, max_wait: float | str | None) -> dict[str, Any]:
    """Return the config's `batch`, if the caller gave any of it."""
    given = {"size": batch_size, "max_wait": max_wait}
    batch = {key: value for key, value in given.items() if value is not None}
    return {"batch": batch} if batch else {}


def _ignore_progress(progress: LiveRun) -> None:
    """Stand in for a display of progress."""


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
            be read more than once, a function that returns an iterable, `defer(Class, ...)`, or an import path. One
            process reads it and calls an iterable's `set_epoch`, if any, before each epoch. If `__getitem__` is slow,
            use `from_dataset`.
        options: `SourceOptions`, such as `retries` and `on_error`. Only record sources (`stagepipe.sources.parquet`),
            which are read by index, take options of processes such as `workers=4`.

    >>> from_source(range(3)).take(2)
    [0, 1]

    Raises UsageError for a class; pass `defer(Class, ...)` instead.
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

    One process draws the order, and the source's workers read the samples. Set their number with `workers`.

    Args:
        dataset: a map-style dataset (`__len__` and `__getitem__`) or an iterable one. To build it in each worker, pass
            its class, `defer(Class, ...)`, a function that returns it, or an import path.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch.
        sampler: an iterable of indices, instead of `shuffle`.
        batch_sampler: an iterable of lists of indices, instead of `shuffle`, `sampler` and `batch_size`.
        batch_size: samples per batch; the workers collate. None: each sample is an item. This is 1.1 to 2.5 times as
            fast as `.batch` in our measurements, but a batch is seeded, retried and skipped as a whole.
        drop_last: drop the last batch if it is shorter.
        collate_fn: turns a list of samples into a batch. Default: like `.batch`.
        worker_init_fn: called once in each worker, with the worker's number.
        shards: the number of iterations over an iterable dataset, each with a different `id` of `get_worker_info()`.
            With shards, several workers may read the dataset.
        options: `SourceOptions`, such as `workers=8`. One process reads an iterable dataset without `shards`, so it
            takes no options of processes.

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
