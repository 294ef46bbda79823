"""Expands sources of datasets and records to their long form, checks their arguments, and finds how items are read.

A record source becomes a dataset source over it, so that workers may read its records:

    source: {uses: stagepipe.sources.jsonl, with: {path: "data/*.jsonl", shuffle: true, batch_size: 8}}

becomes

    source:
      uses: stagepipe.sources.dataset
      with:
        dataset: {uses: stagepipe.sources.jsonl, with: {path: "data/*.jsonl", shuffle: true}}
        batch_size: 8

No other module knows the shorthand of a dataset source: paths without `uses`, and a `with` for the dataset. The long
form goes through the same checks as any other target. Every node keeps its location. The plan splits the source into
its processes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from stagepipe.config.document import MapEntry, MapNode, Node, ScalarNode, to_plain
from stagepipe.config.source_code import is_known_stream
from stagepipe.config.suggestions import DATALOADER_ARGUMENT_HINTS
from stagepipe.config.value_types import format_value
from stagepipe.core import Problem, closest_match, find_iterator, has_call_method
from stagepipe.spec import SourceReading, SourceSpec, Target, iter_keys

_ALIASES: Final = (
    *("arrow", "concat", "csv", "hdf5", "jsonl", "lance", "mix"),
    *("npy", "parquet", "text", "webdataset", "zarr", "zip"),
)
"""Aliases of record sources with classes of the same name, such as `arrow` and `ArrowSource`."""
RECORD_SOURCE_NAMES: Final = frozenset(
    {*_ALIASES, *(f"{alias.capitalize()}Source" for alias in _ALIASES), "huggingface", "HuggingFaceSource"}
)
"""The record sources of `stagepipe.sources`: the aliases and the classes."""
LOADER_ARGUMENTS: Final = ("sampler", "batch_sampler", "batch_size", "drop_last", "collate_fn", "worker_init_fn")
"""Arguments of a record source that belong to `stagepipe.sources.dataset`."""
_PACKAGE: Final = "stagepipe.sources."
_FILES_SOURCES: Final = frozenset({"files", "FilesSource"})


def is_record_source(source: Node | None) -> bool:
    """Return whether a config's `source` is a record source, given as a path, a class or an object."""
    value = _get_target(source)
    if isinstance(value, str):
        name = value.removeprefix(_PACKAGE) if value.startswith(_PACKAGE) else ""
        return name in RECORD_SOURCE_NAMES or (name in _FILES_SOURCES and _reads_urls(source))
    return getattr(value, "is_record_source", False) is True


def _get_target(source: Node | None) -> object:
    """Return the import path of a source, also for a built-in class; otherwise the object itself."""
    uses = source.get("uses") if isinstance(source, MapNode) else None
    value = uses.value if isinstance(uses, ScalarNode) else None
    if inspect.isclass(value) and value.__module__.startswith(_PACKAGE):
        return f"{_PACKAGE}{value.__qualname__}"
    return value.replace(":", ".") if isinstance(value, str) else value


def _reads_urls(source: Node | None) -> bool:
    """Return whether a source of files reads remote files, which would be slow in its single process."""
    arguments = source.get("with") if isinstance(source, MapNode) else None
    plain = to_plain(arguments) if isinstance(arguments, MapNode) else {}
    return plain.get("read") is True and "://" in str(plain.get("glob"))


def expand_record_source(root: MapNode) -> MapNode:
    """Return the config with its record source, if it has one, as the dataset of a dataset source."""
    source = root.get("source")
    if not isinstance(source, MapNode) or not is_record_source(source):
        return root
    arguments = source.get("with")
    if arguments is not None and not isinstance(arguments, MapNode):
        return root  # the check of `with` reports it
    entries = {} if arguments is None else arguments.entries
    uses = source.entries["uses"]
    own = {name: entry for name, entry in entries.items() if name not in LOADER_ARGUMENTS}
    dataset: Node = uses.node
    if own or not isinstance(uses.node, ScalarNode) or isinstance(uses.node.value, str | type):
        own_map = MapNode(own, source.location if arguments is None else arguments.location)
        dataset = MapNode({"uses": uses, "with": MapEntry(source.location, own_map)}, source.location)
    others = {name: entry for name, entry in entries.items() if name in LOADER_ARGUMENTS}
    new_arguments = MapNode({"dataset": MapEntry(uses.key_location, dataset), **others}, source.location)
    new_uses = ScalarNode("stagepipe.sources.dataset", uses.node.location)
    return root.with_entry("source", source.with_entry("uses", new_uses).with_entry("with", new_arguments))


_DATASET_SOURCE_PATH: Final = "stagepipe.sources.dataset"
_KNOWN_ARGUMENTS: Final = (
    "dataset",
    "with",
    "shuffle",
    "sampler",
    "batch_sampler",
    "batch_size",
    "drop_last",
    "collate_fn",
    "worker_init_fn",
    "shards",
)
_ORDER_ARGUMENTS: Final = ("shuffle", "sampler", "batch_sampler")
_READ_IN_WORKERS: Final = ("index", "shards")
_KEYS_OF_ALL: Final = ("uses", "with", "retries", "on_error", "allow_none", "start_timeout", "reseed")
_READER_KEYS: Final = tuple(key.key for key in iter_keys(SourceSpec) if key.key not in _KEYS_OF_ALL)
"""Keys of the processes that read by index."""
_HARMLESS_VALUES: Final[dict[str, dict[str, tuple[object, ...]]]] = {
    "": {"workers": (1,), "fuse": (False,)},
    "stream": {"workers": (1,), "fuse": (False, True)},
}
"""Values that match the behaviour of a source without readers."""


def check_source_keys(source: MapNode, reading: str) -> Iterator[Problem]:
    """Reject the keys of a source that require reading by index in workers, or that exclude each other."""
    for key, entry in source.entries.items():
        if reading in _READ_IN_WORKERS or key not in _READER_KEYS or source.get(key) is None:
            continue
        harmless = _HARMLESS_VALUES[reading].get(key, ())
        if not (isinstance(entry.node, ScalarNode) and entry.node.value in harmless):
            yield _make_reader_problem(source, key, reading)
    reasons = {
        "batch_sampler": "its `batch_sampler` already forms the batches",
        "batch_size": "its `batch_size` already forms the batches",
        "shards": "it reads whole shards; set `batch_size`",
    }
    arguments = source.get("with")
    given = arguments if isinstance(arguments, MapNode) else MapNode(location=source.location)
    reason = next((text for key, text in reasons.items() if reading and given.get(key) is not None), None)
    if source.get("batch") is not None and reason is not None:
        message = f"`{_get_shown_path(source)}` cannot have `batch`: {reason}"
        yield source.entries["batch"].key_location.make_problem(message, "remove `batch`")


def _make_reader_problem(source: MapNode, key: str, reading: str) -> Problem:
    location = source.entries[key].key_location
    uses = source.get("uses")
    label = _get_shown_path(source) if reading else Target(uses.value).label if isinstance(uses, ScalarNode) else ""
    hint = f"remove `{key}`; set it on the stage that does the work"
    if reading == "stream":
        reason = "an iterable dataset has no indices, so one process reads it"
        if key == "workers":
            hint += ", or let the dataset split itself: add the argument `shards: N`"
    else:
        reason = "one process reads it, item by item"
        if key == "workers":
            hint += f", or read a dataset: `uses: {_DATASET_SOURCE_PATH}`, in Python `from_dataset(...)`"
    return location.make_problem(f"`{label}` cannot have `{key}`: {reason}", hint)


def _get_shown_path(source: MapNode) -> str:
    """Return the path that the user wrote: the path of the record source if the dataset is one."""
    arguments = source.get("with")
    dataset = arguments.get("dataset") if isinstance(arguments, MapNode) else None
    path = dataset.get_text("uses") if isinstance(dataset, MapNode) else None
    return path if path is not None and path.startswith("stagepipe.sources.") else _DATASET_SOURCE_PATH


def check_arguments(source_arguments: MapNode, *, takes_with: bool) -> Iterator[Problem]:
    """Reject unknown arguments, wrong values and arguments that exclude each other.

    `takes_with`: the dataset is given as a path, class or function, so it takes the `with` next to it.
    """
    for key, entry in source_arguments.entries.items():
        if key not in _KNOWN_ARGUMENTS:
            closest = closest_match(str(key), _KNOWN_ARGUMENTS)
            known = f"it takes {', '.join(f'`{name}`' for name in _KNOWN_ARGUMENTS)}"
            hint = DATALOADER_ARGUMENT_HINTS.get(key) or (f"did you mean `{closest}`?" if closest else known)
            yield entry.key_location.make_problem(f"`{_DATASET_SOURCE_PATH}` has no argument `{key}`", hint)
    yield from _check_values(source_arguments)
    yield from _check_iterators(source_arguments)
    yield from _check_exclusions(source_arguments)
    yield from _check_batch_arguments(source_arguments)
    arguments, dataset = source_arguments.get("with"), source_arguments.get("dataset")
    if arguments is not None and not isinstance(arguments, MapNode):
        message = f"`with`: expected a mapping of the dataset's arguments, found {format_value(to_plain(arguments))}"
        yield arguments.location.make_problem(message, "write {root: data}")
    elif arguments is not None and dataset is not None and not takes_with:
        message = (
            "`with` next to `dataset` needs a dataset given as a path; this one has its own `with`, or is an object"
        )
        yield source_arguments.entries["with"].key_location.make_problem(message, "remove `with`")


def _check_values(source_arguments: MapNode) -> Iterator[Problem]:
    for key in ("shuffle", "drop_last"):
        node = source_arguments.get(key)
        if node is not None and not (isinstance(node, ScalarNode) and isinstance(node.value, bool)):
            yield _make_value_problem(key, node, "true or false", "write true or false")
    for key in ("batch_size", "shards"):
        node = source_arguments.get(key)
        value = node.value if isinstance(node, ScalarNode) else None
        if node is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield _make_value_problem(key, node, "a whole number of at least 1", f"write a number, or remove `{key}`")


def _make_value_problem(key: str, node: Node, expected: str, hint: str) -> Problem:
    return node.location.make_problem(f"`{key}`: expected {expected}, found {format_value(to_plain(node))}", hint)


def _check_iterators(source_arguments: MapNode) -> Iterator[Problem]:
    """Reject a sampler that can be read only once: from the second epoch on, there would be no items."""
    for key in ("sampler", "batch_sampler"):
        node = source_arguments.get(key)
        iterator = None if node is None else find_iterator(to_plain(node))
        if node is not None and iterator is not None:
            message = f"`{key}` is an iterator ({type(iterator).__qualname__}), which can be read only once"
            hint = "pass a list, or a class or function that creates the iterator of an epoch"
            yield node.location.make_problem(message, hint)


def _check_exclusions(source_arguments: MapNode) -> Iterator[Problem]:
    given = [key for key in _ORDER_ARGUMENTS if _is_set(source_arguments.get(key))]
    for key in given[1:]:
        yield _make_exclusion(source_arguments, given[0], key, "each defines the order of an epoch")
    if "batch_sampler" in given:
        for key in ("batch_size", "drop_last"):
            if _is_set(source_arguments.get(key)):
                yield _make_exclusion(source_arguments, "batch_sampler", key, "each defines the batches")
    for key in given:
        if source_arguments.get("shards") is not None:
            yield _make_exclusion(source_arguments, key, "shards", "an iterable dataset has no indices to order")


def _make_exclusion(source_arguments: MapNode, first: str, second: str, reason: str) -> Problem:
    location = source_arguments.entries[second].key_location
    message = f"`{first}` and `{second}` exclude each other: {reason}"
    return location.make_problem(message, f"remove `{first}` or `{second}`")


def _is_set(node: Node | None) -> bool:
    """Return whether an argument is given and not false."""
    return node is not None and not (isinstance(node, ScalarNode) and node.value is False)


def _check_batch_arguments(source_arguments: MapNode) -> Iterator[Problem]:
    """Reject `collate_fn` and `drop_last` without batches."""
    if any(source_arguments.get(key) is not None for key in ("batch_size", "batch_sampler")):
        return
    reasons = {"collate_fn": "it is called with the samples of a batch", "drop_last": "there are no batches to drop"}
    for key, reason in reasons.items():
        if _is_set(source_arguments.get(key)):
            location = source_arguments.entries[key].key_location
            message = f"`{key}` needs a `batch_size` or a `batch_sampler`: {reason}"
            yield location.make_problem(message, f"add `batch_size: N`, or remove `{key}`")


def check_stream_arguments(source_arguments: MapNode) -> Iterator[Problem]:
    """Reject arguments that need indices."""
    for key in _ORDER_ARGUMENTS:
        if _is_set(source_arguments.get(key)):
            message = f"`{key}` does not apply to an iterable dataset: it has no indices"
            location = source_arguments.entries[key].key_location
            stage = "{name: shuffle, uses: stagepipe.stages.Shuffle, with: {size: 1000}}, in Python `.shuffle(1000)`"
            yield location.make_problem(message, f"remove `{key}`; to shuffle, add a stage {stage}")


SHORTHAND_ARGUMENTS: Final = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn")
"""Arguments of the source for which a bare path is allowed."""
CALLED_ARGUMENTS: Final = ("collate_fn", "worker_init_fn")
"""Arguments that are called with samples or a worker, instead of creating something."""

_DATASET_SOURCE_PATHS: Final = ("stagepipe.sources.dataset", "stagepipe.sources.DatasetSource")
"""The alias and the class."""


def is_dataset_source(source: Node | None) -> bool:
    """Return whether a config's `source` is `stagepipe.sources.dataset`, given as a path or a class."""
    value = _get_target(source)
    return isinstance(value, str) and value in _DATASET_SOURCE_PATHS


def normalize_source(root: MapNode, config_dir: Path | None, problems: list[Problem]) -> tuple[MapNode, SourceReading]:
    """Return the config with its dataset or record source in its long form, and how its items are read.

    Append mistakes in its arguments, and keys that the source does not take, to `problems`.
    """
    root = expand_record_source(root)
    source = root.get("source")
    if not isinstance(source, MapNode):
        return root, ""
    if not is_dataset_source(source):
        problems += check_source_keys(source, "")
        return root, ""
    given = source.get("with")
    arguments = given if isinstance(given, MapNode) else MapNode(location=source.location)
    problems += check_arguments(arguments, takes_with=_is_factory(arguments.get("dataset")))
    if arguments.get("shards") is not None:
        reading: SourceReading = "shards"
    else:
        reading = "stream" if _is_stream_dataset(arguments, config_dir) else "index"
    if reading == "stream":
        problems += check_stream_arguments(arguments)
    problems += check_source_keys(source, reading)
    if isinstance(given, MapNode):
        root = root.with_entry("source", source.with_entry("with", _expand_shorthand(arguments)))
    return root, reading


def _expand_shorthand(source_arguments: MapNode) -> MapNode:
    entries = {
        key: replace(entry, node=_to_target_node(entry.node))
        for key, entry in source_arguments.entries.items()
        if key in SHORTHAND_ARGUMENTS and not (key in CALLED_ARGUMENTS and _is_plain_class(entry.node))
    }
    dataset, arguments = entries.get("dataset"), source_arguments.entries.get("with")
    if dataset is not None and arguments is not None and isinstance(dataset.node, MapNode):
        node = dataset.node.with_entry("with", arguments.node, arguments.key_location)
        entries["dataset"] = replace(dataset, node=node)
    return MapNode({**source_arguments.entries, **entries}, source_arguments.location).without("with")


def _is_plain_class(node: Node) -> bool:
    """Return whether an argument is a class without `__call__`, such as `tuple`: the class itself is called."""
    value = node.value if isinstance(node, ScalarNode) else None
    return inspect.isclass(value) and not has_call_method(value)


def _to_target_node(node: Node) -> Node:
    """Return `{uses: node}` for a path, a class or a function; return an object unchanged."""
    return MapNode({"uses": MapEntry(node.location, node)}, node.location) if _is_factory(node) else node


def _is_factory(node: Node | None) -> bool:
    """Return whether an argument is a path, a class or a function, which is called to create the object."""
    if not isinstance(node, ScalarNode):
        return False
    value = node.value
    is_called = inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, functools.partial)
    return is_called or isinstance(value, str)


def _is_stream_dataset(source_arguments: MapNode, config_dir: Path | None) -> bool:
    dataset = source_arguments.get("dataset")
    uses = dataset.get("uses") if isinstance(dataset, MapNode) else dataset
    return isinstance(uses, ScalarNode) and is_known_stream(uses.value, config_dir)
