"""`source: {uses: stagepipe.sources.dataset}`: what it says as a source of indices and a first stage, `dataset`. Pure.

The one place that knows of it: what the user writes in short (paths without `uses`, the dataset's own `with`) goes in,
what every source and stage looks like comes out, and is checked as every other. What was written keeps its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stagepipe.config.checks import stages_of
from stagepipe.config.nodes import Entry, List, Map, Node, Scalar
from stagepipe.config.static import is_known_stream
from stagepipe.config.words import LOADER_WORDS
from stagepipe.core import Problem
from stagepipe.core.targets import nearest

STAGE: Final = "dataset"
"""The name of the stage that turns indices into samples."""

IN_SHORT: Final = ("dataset", "sampler", "batch_sampler", "collate_fn")
"""Arguments of the source that may be a path alone."""

_SOURCE: Final = "stagepipe.sources.dataset"
_FETCH: Final = "stagepipe.stages.Fetch"
_OF_SOURCE: Final = ("dataset", "shuffle", "sampler", "batch_sampler")
_SHUFFLE: Final = "{name: shuffle, uses: stagepipe.stages.Shuffle, with: {size: 1000}}"
_KNOWN: Final = ("dataset", "with", "shuffle", "sampler", "batch_sampler", "collate_fn")
_OF_A_PROCESS: Final = ("workers", "threads", "cpus", "env", "batch")
_NOT_ITS_OWN: Final = ("uses", "with", "field", "as")


def is_dataset_source(source: Node | None) -> bool:
    """Whether a config's `source` is `stagepipe.sources.dataset`, by path or as the class itself."""
    uses = source.get("uses") if isinstance(source, Map) else None
    value = uses.value if isinstance(uses, Scalar) else None
    if inspect.isclass(value):
        value = f"{value.__module__.rpartition('.')[0]}.{value.__qualname__}"
    return isinstance(value, str) and value.replace(":", ".") == _SOURCE


def with_stage(root: Map) -> Map:
    """The config with an entry for the stage `dataset` before all others, where its source implies one.

    An entry of that name that the user wrote, wherever it stands, is that stage.
    """
    source = root.get("source")
    stages = root.get("stages") or List(place=root.place)
    if source is None or not is_dataset_source(source) or not isinstance(stages, List):
        return root
    own = next((s for s in stages.items if isinstance(s, Map) and s.text("name") == STAGE), None)
    first = Map({"name": Entry(source.place, Scalar(STAGE, source.place))}, source.place) if own is None else own
    others = tuple(stage for stage in stages.items if stage is not own)
    return root.with_entry("stages", replace(stages, items=(first, *others)))


def expanded(root: Map, config_dir: Path | None, problems: list[Problem]) -> Map:
    """The config with what its dataset source says in short written out; mistakes in that go to `problems`."""
    root = with_stage(root)
    source = root.get("source")
    arguments = source.get("with") if isinstance(source, Map) else None
    stages = root.get("stages")
    if not is_dataset_source(source) or not isinstance(source, Map) or not isinstance(stages, List):
        return root
    given = arguments if isinstance(arguments, Map) else Map(place=source.place)
    stage = next(s for s in stages_of(root) if s.text("name") == STAGE)
    problems += [*_of_source(source), *_of_arguments(given), *_of_stage(stage, given)]
    written_out = _written_out(given)
    if _names_stream(given, config_dir):
        problems += _of_stream(stage, given)
        stage = stage.without(*_OF_A_PROCESS)
        stage = stage if "fuse" in stage.entries else stage.with_entry("fuse", Scalar(value=True, place=source.place))
    if isinstance(arguments, Map):
        kept = {key: entry for key, entry in written_out.entries.items() if key in _OF_SOURCE}
        root = root.with_entry("source", source.with_entry("with", Map(kept, arguments.place)))
    first = _fetching(stage, written_out, source)
    return root.with_entry("stages", replace(stages, items=(first, *stages.items[1:])))


def _written_out(given: Map) -> Map:
    entries = {key: replace(entry, node=_target(entry.node)) for key, entry in given.entries.items() if key in IN_SHORT}
    dataset, arguments = entries.get("dataset"), given.entries.get("with")
    if dataset is not None and arguments is not None and isinstance(dataset.node, Map):
        node = dataset.node.with_entry("with", arguments.node, arguments.key_place)
        entries["dataset"] = replace(dataset, node=node)
    return Map({**given.entries, **entries}, given.place)


def _target(node: Node) -> Node:
    """`{uses: path}` for a path, a class or a function; an object stands for itself."""
    if not isinstance(node, Scalar):
        return node
    value = node.value
    is_made = inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, functools.partial)
    return Map({"uses": Entry(node.place, node)}, node.place) if is_made or isinstance(value, str) else node


def _names_stream(given: Map, config_dir: Path | None) -> bool:
    dataset = given.get("dataset")
    uses = dataset.get("uses") if isinstance(dataset, Map) else dataset
    return isinstance(uses, Scalar) and is_known_stream(uses.value, config_dir)


def _of_stream(stage: Map, given: Map) -> Iterator[Problem]:
    """An iterable dataset has no indices, so there is nothing to order, and nothing for workers to do."""
    for key in ("shuffle", "sampler", "batch_sampler"):
        node = given.get(key)
        if node is not None and not (isinstance(node, Scalar) and node.value is False):
            message = f"the dataset is iterable, so it has no indices for `{key}` to order"
            mend = f"remove `{key}`; to shuffle add a stage {_SHUFFLE}"
            yield given.entries[key].key_place.problem(message, mend)
    for key in _OF_A_PROCESS:
        if stage.get(key) is not None:
            message = f"the dataset is iterable: it is read in the source's process, and its stage takes no `{key}`"
            mend = f"remove `{key}`, and set it on the stage that does the work"
            yield stage.entries[key].key_place.problem(message, mend)


def _fetching(stage: Map, written_out: Map, source: Map) -> Map:
    """The stage as any other: its `uses` stands where the source's does."""
    nothing = Scalar(None, source.place)
    arguments = Map({"dataset": written_out.entries.get("dataset", Entry(source.place, nothing))}, source.place)
    if written_out.get("batch_sampler") is not None:
        arguments = arguments.with_entry("batched", Scalar(value=True, place=source.place))
    collate = written_out.entries.get("collate_fn")
    if collate is not None and written_out.get("collate_fn") is not None:
        arguments = arguments.with_entry("collate_fn", collate.node, collate.key_place)
    place = source.entries["uses"].node.place
    return stage.with_entry("uses", Scalar(_FETCH, place)).with_entry("with", arguments)


def _of_source(source: Map) -> Iterator[Problem]:
    for key in ("retries", "on_error"):
        if source.get(key) is not None:
            message = f"`{_SOURCE}` takes no `{key}`: it sends indices, and the stage `{STAGE}` reads the samples"
            mend = f"set it there: {{name: {STAGE}, {key}: ...}}"
            yield source.entries[key].key_place.problem(message, mend)


def _of_arguments(given: Map) -> Iterator[Problem]:
    for key, entry in given.entries.items():
        if key not in _KNOWN:
            near = nearest(str(key), _KNOWN)
            known = f"it takes {', '.join(f'`{word}`' for word in _KNOWN)}"
            mend = LOADER_WORDS.get(key) or (f"did you mean `{near}`?" if near else known)
            yield entry.key_place.problem(f"`{_SOURCE}` has no argument `{key}`", mend)
    yield from _of_order(given)
    arguments, dataset = given.get("with"), given.get("dataset")
    if arguments is not None and not isinstance(arguments, Map):
        yield arguments.place.problem("`with`: expected a mapping of the dataset's arguments", "write {root: data}")
    elif arguments is not None and dataset is not None and not _takes_arguments(dataset):
        message = "`with` beside `dataset` is for a dataset named by its path; this one has its own, or is built"
        yield given.entries["with"].key_place.problem(message, "remove `with`")


def _takes_arguments(dataset: Node) -> bool:
    target: Any = _target(dataset)
    return isinstance(target, Map) and isinstance(dataset, Scalar)


def _of_order(given: Map) -> Iterator[Problem]:
    shuffle = given.get("shuffle")
    if shuffle is not None and not (isinstance(shuffle, Scalar) and isinstance(shuffle.value, bool)):
        yield shuffle.place.problem("`shuffle`: expected true or false", "write true or false")
    shuffled = isinstance(shuffle, Scalar) and shuffle.value is True
    orders = [key for key in ("shuffle", "sampler", "batch_sampler") if given.get(key) is not None]
    orders = [key for key in orders if key != "shuffle" or shuffled]
    for key in orders[1:]:
        message = f"`{orders[0]}` and `{key}` exclude each other: each is the order of an epoch"
        yield given.entries[key].key_place.problem(message, f"remove `{orders[0]}` or `{key}`")
    if given.get("collate_fn") is not None and given.get("batch_sampler") is None:
        message = "`collate_fn` is called with the samples of a batch, and there is no `batch_sampler` to say which"
        mend = (
            "give a `batch_sampler`; or remove `collate_fn` and add a stage {name: batch, uses: "
            "stagepipe.stages.Batch, with: {size: N}}"
        )
        yield given.entries["collate_fn"].key_place.problem(message, mend)


def _of_stage(stage: Map, given: Map) -> Iterator[Problem]:
    for key in _NOT_ITS_OWN:
        if stage.get(key) is not None:
            message = f"the stage `{STAGE}` takes no `{key}`: it calls the `__getitem__` of the source's dataset"
            mend = f"remove `{key}`; or, if this is a stage of your own, give it another name"
            yield stage.entries[key].key_place.problem(message, mend)
    if stage.get("batch") is not None and given.get("batch_sampler") is not None:
        message = f"the stage `{STAGE}` takes no `batch` where the source has a `batch_sampler`, which makes the lists"
        yield stage.entries["batch"].key_place.problem(message, "remove `batch`")
