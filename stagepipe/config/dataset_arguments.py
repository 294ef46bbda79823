"""Checks the arguments of `stagepipe.sources.dataset`, and the keys of any source. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stagepipe.config.schema import format_kind, format_value
from stagepipe.config.suggestions import DATALOADER_ARGUMENT_HINTS
from stagepipe.config.yaml import MapNode, Node, ScalarNode, to_plain
from stagepipe.core import AdviceText, ConfigSyntax, Placeholder, Problem, closest_match, find_iterator
from stagepipe.spec import SourceSpec, Target, iter_keys

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
"""What a source without readers does anyway."""


def check_source_keys(source: MapNode, reading: str) -> Iterator[Problem]:
    """Reject the keys of a source that need indices to read in workers, or exclude each other."""
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
        message = f"`{_get_shown_path(source)}` takes no `batch`: {reason}"
        yield source.entries["batch"].key_location.make_problem(message, "remove `batch`")


def _make_reader_problem(source: MapNode, key: str, reading: str) -> Problem:
    location = source.entries[key].key_location
    uses = source.get("uses")
    label = _get_shown_path(source) if reading else Target(uses.value).label if isinstance(uses, ScalarNode) else ""
    hint = f"remove `{key}`; set it on the stage that does the work"
    if reading == "stream":
        reason = "an iterable dataset has no indices, so one process reads it"
        if key == "workers":
            shards = location.syntax.format_setting("shards", Placeholder("N"))
            hint += f", or let the dataset split itself: add the argument `{shards}`"
    else:
        reason = "one process reads it, item by item"
        if key == "workers":
            is_builder = location.syntax is ConfigSyntax.BUILDER
            dataset = "from_dataset(...)" if is_builder else f"uses: {_DATASET_SOURCE_PATH}"
            hint += f", or read a dataset: `{dataset}`"
    return location.make_problem(f"`{label}` takes no `{key}`: {reason}", hint)


def _get_shown_path(source: MapNode) -> str:
    """Return the path that the user wrote: that of a record source, if the dataset is one."""
    arguments = source.get("with")
    dataset = arguments.get("dataset") if isinstance(arguments, MapNode) else None
    path = dataset.get_text("uses") if isinstance(dataset, MapNode) else None
    return path if path is not None and path.startswith("stagepipe.sources.") else _DATASET_SOURCE_PATH


def check_arguments(source_arguments: MapNode, *, takes_with: bool) -> Iterator[Problem]:
    """Reject unknown arguments, wrong values and arguments that exclude each other.

    `takes_with`: the dataset is given as a path, class or function, so it takes the `with` beside it.
    """
    for key, entry in source_arguments.entries.items():
        if key not in _KNOWN_ARGUMENTS:
            closest = closest_match(str(key), _KNOWN_ARGUMENTS)
            known = f"it takes {', '.join(f'`{name}`' for name in _KNOWN_ARGUMENTS)}"
            hint: AdviceText = DATALOADER_ARGUMENT_HINTS.get(key) or (
                f"did you mean `{closest}`?" if closest else known
            )
            yield entry.key_location.make_problem(f"`{_DATASET_SOURCE_PATH}` has no argument `{key}`", hint)
    yield from _check_values(source_arguments)
    yield from _check_iterators(source_arguments)
    yield from _check_exclusions(source_arguments)
    yield from _check_batch_arguments(source_arguments)
    arguments, dataset = source_arguments.get("with"), source_arguments.get("dataset")
    if arguments is not None and not isinstance(arguments, MapNode):
        syntax = arguments.location.syntax
        kind, found = format_kind("a mapping", syntax), format_value(to_plain(arguments), syntax)
        message = f"`with`: expected {kind} of the dataset's arguments, found {found}"
        yield arguments.location.make_problem(message, f"write {syntax.format_value({'root': 'data'})}")
    elif arguments is not None and dataset is not None and not takes_with:
        message = (
            "`with` beside `dataset` needs a dataset given as a path; this one has its own `with`, or is an object"
        )
        yield source_arguments.entries["with"].key_location.make_problem(message, "remove `with`")


def _check_values(source_arguments: MapNode) -> Iterator[Problem]:
    for key in ("shuffle", "drop_last"):
        node = source_arguments.get(key)
        if node is not None and not (isinstance(node, ScalarNode) and isinstance(node.value, bool)):
            expected = format_kind("true or false", node.location.syntax)
            yield _make_value_problem(key, node, expected, f"write {expected}")
    for key in ("batch_size", "shards"):
        node = source_arguments.get(key)
        value = node.value if isinstance(node, ScalarNode) else None
        if node is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield _make_value_problem(key, node, "a whole number of at least 1", f"write a number, or remove `{key}`")


def _make_value_problem(key: str, node: Node, expected: str, hint: str) -> Problem:
    found = format_value(to_plain(node), node.location.syntax)
    return node.location.make_problem(f"`{key}`: expected {expected}, found {found}", hint)


def _check_iterators(source_arguments: MapNode) -> Iterator[Problem]:
    """Reject a sampler that can be read only once: from the second epoch on there would be no items."""
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
    """Return whether an argument is given, and not false."""
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
            batch_size = location.syntax.format_setting("batch_size", Placeholder("N"))
            yield location.make_problem(message, f"add `{batch_size}`, or remove `{key}`")


def check_stream_arguments(source_arguments: MapNode) -> Iterator[Problem]:
    """Reject arguments that need indices."""
    for key in _ORDER_ARGUMENTS:
        if _is_set(source_arguments.get(key)):
            message = f"`{key}` does not apply to an iterable dataset: it has no indices"
            location = source_arguments.entries[key].key_location
            shuffle = location.syntax.format_built_in_stage("Shuffle", 1000)
            is_builder = location.syntax is ConfigSyntax.BUILDER
            hint = f"remove `{key}`; to shuffle, {f'call `{shuffle}`' if is_builder else f'add a stage {shuffle}'}"
            yield location.make_problem(message, hint)
