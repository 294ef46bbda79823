"""Checks the arguments of `stagepipe.sources.dataset`, and the keys of its stage. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stagepipe.config.cross_checks import PROCESS_KEYS
from stagepipe.config.schema import format_kind, format_value
from stagepipe.config.suggestions import DATALOADER_ARGUMENT_HINTS
from stagepipe.config.yaml import MapNode, Node, ScalarNode, to_plain
from stagepipe.core import AdviceText, ConfigSyntax, Placeholder, Problem, closest_match, find_iterator

DATASET_STAGE_NAME: Final = "dataset"
"""The name of the stage that turns indices into samples."""

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
_FORBIDDEN_STAGE_KEYS: Final = ("uses", "with", "field", "as")


def check_source_keys(source: MapNode) -> Iterator[Problem]:
    """Reject keys of the source that belong to its stage."""
    for key in ("retries", "on_error", "allow_none"):
        if source.get(key) is not None:
            message = (
                f"`{_get_shown_path(source)}` takes no `{key}`: it only sends indices; "
                f"the stage `{DATASET_STAGE_NAME}` reads the samples"
            )
            location = source.entries[key].key_location
            stage = location.syntax.format_value({"name": DATASET_STAGE_NAME, key: Placeholder("...")})
            is_builder = location.syntax is ConfigSyntax.BUILDER
            hint = f"write from_dataset(..., {key}=...)" if is_builder else f"set it on that stage: {stage}"
            yield location.make_problem(message, hint)


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


def check_stage_keys(stage: MapNode, source_arguments: MapNode) -> Iterator[Problem]:
    """Reject keys of the stage `dataset` that its source determines."""
    for key in _FORBIDDEN_STAGE_KEYS:
        if stage.get(key) is not None:
            message = (
                f"the stage `{DATASET_STAGE_NAME}` takes no `{key}`: it calls the `__getitem__` of the source's dataset"
            )
            hint = f"remove `{key}`; if this is a different stage, give it another name"
            yield stage.entries[key].key_location.make_problem(message, hint)
    reasons = {
        "batch_sampler": "the source's `batch_sampler` already forms the batches",
        "batch_size": "the source's `batch_size` already forms the batches",
        "shards": "it reads whole shards; set the source's `batch_size`",
    }
    reason = next((text for key, text in reasons.items() if source_arguments.get(key) is not None), None)
    if stage.get("batch") is not None and reason is not None:
        message = f"the stage `{DATASET_STAGE_NAME}` takes no `batch`: {reason}"
        yield stage.entries["batch"].key_location.make_problem(message, "remove `batch`")


def check_stream_keys(stage: MapNode, source_arguments: MapNode) -> Iterator[Problem]:
    """Reject keys that need indices or workers: an iterable dataset has no indices, and the source itself reads it."""
    for key in _ORDER_ARGUMENTS:
        if _is_set(source_arguments.get(key)):
            message = f"`{key}` does not apply to an iterable dataset: it has no indices"
            location = source_arguments.entries[key].key_location
            shuffle = location.syntax.format_built_in_stage("Shuffle", 1000)
            is_builder = location.syntax is ConfigSyntax.BUILDER
            hint = f"remove `{key}`; to shuffle, {f'call `{shuffle}`' if is_builder else f'add a stage {shuffle}'}"
            yield location.make_problem(message, hint)
    for key in PROCESS_KEYS:
        if stage.get(key) is not None:
            message = f"the stage `{DATASET_STAGE_NAME}` takes no `{key}`: the source itself reads an iterable dataset"
            hint = f"remove `{key}`; set it on the stage that does the work"
            if key == "workers":
                shards = stage.location.syntax.format_setting("shards", Placeholder("N"))
                hint += f", or let the dataset split itself: give the source `{shards}`"
            yield stage.entries[key].key_location.make_problem(message, hint)
