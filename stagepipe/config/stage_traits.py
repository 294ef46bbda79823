"""Says what the code of a stage or a sink demands of its keys: whether it is an order point, what it takes. Pure.

The answers come from attributes of its class, read from the source file. Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stagepipe.config.static_analysis import DefinitionLookup, ModuleFinder, read_class_attribute
from stagepipe.config.yaml import MapNode, ScalarNode
from stagepipe.spec import Target


@dataclass(frozen=True)
class StageTraits:
    """What the class of a stage says about it. `label` names the class in messages."""

    label: str = ""
    is_order_point: bool = False
    takes_whole_items: bool = False
    items_per_output: int = 1


def read_stage_traits(stages: Sequence[MapNode], config_dir: Path | None) -> list[StageTraits]:
    """Return the traits of each entry of `stages`; the defaults where the source does not show them."""
    lookup = DefinitionLookup(ModuleFinder(config_dir))
    return [_read_traits(stage, lookup) for stage in stages]


@dataclass(frozen=True)
class SinkTraits:
    """What the class of a sink says about it. `multiple_argument` is the argument that sets `part_multiple`, if any."""

    writes_parts: bool = False
    appends_parts: bool = True
    part_multiple: int = 1
    multiple_argument: str | None = None


def read_sink_traits(sinks: Sequence[MapNode], config_dir: Path | None) -> list[SinkTraits]:
    """Return the traits of each sink; the defaults where the source does not show them."""
    lookup = DefinitionLookup(ModuleFinder(config_dir))

    def is_true(uses: object, name: str) -> bool:
        return isinstance(uses, ScalarNode) and read_class_attribute(uses.value, name, lookup) is True

    return [
        SinkTraits(is_true(uses, "writes_parts"), is_true(uses, "appends"), *_read_part_multiple(sink, lookup))
        for sink in sinks
        for uses in (sink.get("uses"),)
    ]


def _read_part_multiple(sink: MapNode, lookup: DefinitionLookup) -> tuple[int, str | None]:
    """Return `part_multiple`, and the argument that it names, whose default is the class attribute of that name."""
    uses = sink.get("uses")
    if not isinstance(uses, ScalarNode):
        return 1, None
    count = read_class_attribute(uses.value, "part_multiple", lookup)
    argument = count if isinstance(count, str) else None
    if argument is not None:
        default = read_class_attribute(uses.value, argument, lookup)
        count = _get_argument(sink, argument, getattr(uses.value, argument, default))
    return (count if isinstance(count, int) and count > 0 else 1), argument


def _read_traits(stage: MapNode, lookup: DefinitionLookup) -> StageTraits:
    uses = stage.get("uses")
    if not isinstance(uses, ScalarNode):
        return StageTraits()
    is_order_point = read_class_attribute(uses.value, "order_point", lookup) is True
    takes_whole_items = is_order_point or read_class_attribute(uses.value, "takes_whole_items", lookup) is True
    count = read_class_attribute(uses.value, "items_per_output", lookup) if is_order_point else 1
    if isinstance(count, str):
        count = _get_argument(stage, count, getattr(uses.value, count, 1))
    return StageTraits(
        label=Target(uses.value).label,
        is_order_point=is_order_point,
        takes_whole_items=takes_whole_items,
        items_per_output=count if isinstance(count, int) and count > 0 else 1,
    )


def _get_argument(node: MapNode, name: str, default: object) -> object:
    arguments = node.get("with")
    argument = arguments.get(name) if isinstance(arguments, MapNode) else None
    return argument.value if isinstance(argument, ScalarNode) else default
