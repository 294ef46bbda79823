"""Checks where a stage may keep its outputs: what comes out of it must depend on things that can be compared. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from stagepipe.config.stage_traits import StageTraits
from stagepipe.config.yaml import MapNode, Node, ScalarNode, to_plain
from stagepipe.core import Problem
from stagepipe.spec import SOURCE_NAME, SourceReading

_SAMPLERS: Final = ("sampler", "batch_sampler")
_IDENTITY: Final = "its items have no identity that stagepipe can determine"


def check_caches(
    root: MapNode, stages: Sequence[MapNode], stage_traits: Sequence[StageTraits], reading: SourceReading
) -> Iterator[Problem]:
    """Yield the problems of each `cache` of the source, whose items are read so, and of `stages`."""
    grouping_stage = stateful_stage = ""
    source = root.get("source")
    readers = [(source, StageTraits(label=SOURCE_NAME))] if isinstance(source, MapNode) and reading else []
    for stage, traits in (*readers, *zip(stages, stage_traits, strict=True)):
        name = stage.get_text("name") or traits.label
        is_stateful = _is_true(stage.get("stateful"))
        if stage.get("cache") is not None:
            message, hint = "", "remove `cache`"
            if traits.is_order_point:
                message = f"`{traits.label}` takes no `cache`: its outputs consist of many items"
                hint = "set it on an earlier stage"
            elif stage.get("batch") is not None:
                message = "a stage with `batch` takes no `cache`: its results may depend on the other items of a call"
                hint = "remove `cache`, or `batch`"
            elif is_stateful:
                message = "a stateful stage takes no `cache`: what it returns depends on the items before"
            elif grouping_stage:
                message = f"a stage after `{grouping_stage}` takes no `cache`: its items have no identity of their own"
                hint = f"set it on a stage before `{grouping_stage}`"
            elif stateful_stage:
                message = (
                    f"a stage after the stateful `{stateful_stage}` takes no `cache`: what it returns depends on the "
                    "items before"
                )
                hint = f"set it on a stage before `{stateful_stage}`"
            if message:
                yield stage.entries["cache"].key_location.make_problem(message, hint)
            else:
                yield from _check_source(source, stage, reading if stage is source else "")
        grouping_stage = name if traits.is_order_point else grouping_stage
        stateful_stage = name if is_stateful else stateful_stage


def _check_source(source: Node | None, stage: MapNode, reading: SourceReading) -> Iterator[Problem]:
    """Refuse a cache of items that may be others in the next run, unless the user gives a key for them.

    `reading` is the source's, if the cache is; otherwise it is empty.
    """
    from stagepipe.sources import is_known_source  # with NumPy: only where a stage has a cache

    cache = to_plain(stage.entries["cache"].node)
    settings: dict[Any, Any] = cache if isinstance(cache, dict) else {}
    uses, arguments = _read_source(source)
    is_known = is_known_source(uses, arguments)
    location = stage.entries["cache"].key_location
    if not is_known and not settings.get("key"):
        label = uses if isinstance(uses, str) else getattr(uses, "__qualname__", type(uses).__qualname__)
        example = location.syntax.format_setting("cache", {"path": "...", "key": "..."})
        message = f"the source `{label}` allows no `cache`: {_IDENTITY}"
        yield location.make_problem(message, f"name the state of its data, and change the name with it: `{example}`")
    if settings.get("deterministic") is not True:
        return
    sampler = next((name for name in _SAMPLERS if arguments.get(name) is not None), None)
    finds_items = (is_known and sampler is None) or reading == "index"
    if reading == "shards" or not finds_items:
        cause = f"`{sampler}` draws the order" if sampler else _IDENTITY
        message = f"`deterministic` cannot be set: {cause}, so those of another epoch cannot be found"
        yield location.make_problem(message, "remove `deterministic`: the cache is then of use in the next run")


def _read_source(source: Node | None) -> tuple[Any, dict[Any, Any]]:
    if not isinstance(source, MapNode):
        return None, {}
    uses, arguments = source.get("uses"), source.get("with")
    plain = to_plain(arguments) if isinstance(arguments, MapNode) else {}
    value = to_plain(uses) if uses is not None else None
    return value, plain if isinstance(plain, dict) else {}


def _is_true(node: Node | None) -> bool:
    return isinstance(node, ScalarNode) and node.value is True
