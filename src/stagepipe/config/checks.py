"""What no single key shows: stages against each other, and keys that do not go together. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stagepipe.config.nodes import List, Map, Node, Place, Scalar
from stagepipe.core import Problem

ORDER_POINTS: Final = frozenset({"Batch", "Shuffle"})
"""Built-in stages that are one process, because order is restored there."""

_BUILT_IN: Final = "stagepipe.stages"
_OF_A_PROCESS: Final = ("workers", "threads", "cpus", "env", "batch", "device")
_OF_ITEMS: Final = ("retries", "on_error")
_OF_A_FUNCTION: Final = ("field", "as", "batch")


def stages_of(root: Map) -> list[Map]:
    """The entries of `stages` that are mappings."""
    stages = root.get("stages")
    return [stage for stage in stages.items if isinstance(stage, Map)] if isinstance(stages, List) else []


def built_in(uses: object) -> str | None:
    """The name of one of the stages in `stagepipe.stages`, by path or as the class itself.

    >>> built_in("stagepipe.stages:Batch")
    'Batch'
    """
    if isinstance(uses, type):
        uses = f"{uses.__module__}.{uses.__qualname__}"
    if not isinstance(uses, str) or not uses.startswith(_BUILT_IN):
        return None
    return uses.replace(":", ".").rpartition(".")[2]


def crosswise(root: Map) -> Iterator[Problem]:
    """The problems of a config whose keys may each be right by themselves."""
    yield from _names(root)
    yield from _source(root)
    head = "source"
    for stage in stages_of(root):
        uses = stage.get("uses")
        kind = built_in(uses.value) if isinstance(uses, Scalar) else None
        head = head if _is_true(stage.get("fuse")) else stage.text("name") or head
        yield from _fused(stage, head)
        yield from _order_point(stage, kind)
        if kind in {*ORDER_POINTS, "Unbatch"}:
            yield from _whole_items(stage, kind)


def _names(root: Map) -> Iterator[Problem]:
    seen: dict[str, Place] = {}
    for stage in stages_of(root):
        name = stage.text("name")
        if name is None:
            continue
        place = stage.entries["name"].node.place
        if name in seen:
            where = f" at line {seen[name].line}" if seen[name].line else ""
            yield place.problem(f"a second stage is called `{name}`; the first is{where or ' before it'}", _other(name))
        seen.setdefault(name, place)


def _other(name: str) -> str:
    return f"give it a name of its own, such as `{name}_2`"


def _source(root: Map) -> Iterator[Problem]:
    source = root.get("source")
    uses = source.get("uses") if isinstance(source, Map) else None
    if isinstance(uses, List):  # from Python a list is a source, as the value that it is
        yield uses.place.problem("`source.uses`: expected an import path, found a list", "write pkg.module.name")


def _fused(stage: Map, head: str) -> Iterator[Problem]:
    """What a stage that is fused into the process of `head` cannot have."""
    if not _is_true(stage.get("fuse")):
        return
    for key in _OF_A_PROCESS:
        if stage.get(key) is not None:
            message = f"a fused stage takes no `{key}`: it runs in the process of the stage before it"
            yield stage.entries[key].key_place.problem(message, f"remove `{key}`, or set it on the stage before")
    if stage.text("transport") not in {None, "auto"}:
        message = "a fused stage takes no `transport`: what enters it is passed by a call"
        yield stage.entries["transport"].key_place.problem(message, "remove `transport`")
    if _is_true(stage.get("mutable")):
        message = f"a fused stage takes no `mutable`: only what enters its process, at `{head}`, is read-only"
        mend = "remove `mutable`" if head == "source" else f"set `mutable: true` on `{head}`, which it is fused into"
        yield stage.entries["mutable"].key_place.problem(message, mend)


def _order_point(stage: Map, kind: str | None) -> Iterator[Problem]:
    if kind not in ORDER_POINTS:
        return
    if stage.get("workers") is not None:
        message = f"`stagepipe.stages.{kind}` takes no `workers`: order is restored there, so it is one process"
        yield stage.entries["workers"].key_place.problem(message, "remove `workers`")
    if _is_true(stage.get("fuse")):
        message = f"`stagepipe.stages.{kind}` cannot be fused: order is restored there, so it is a process of its own"
        yield stage.entries["fuse"].key_place.problem(message, "remove `fuse`")
    for key in _OF_ITEMS:
        if stage.get(key) is not None:
            message = f"`stagepipe.stages.{kind}` takes no `{key}`: an item that it cannot take ends the run"
            mend = f"remove `{key}`, and set it on a stage before that refuses such items"
            yield stage.entries[key].key_place.problem(message, mend)


def _whole_items(stage: Map, kind: str | None) -> Iterator[Problem]:
    for key in _OF_A_FUNCTION:
        if stage.get(key) is not None:
            message = f"`stagepipe.stages.{kind}` takes no `{key}`: it works on whole items"
            yield stage.entries[key].key_place.problem(message, f"remove `{key}`")


def _is_true(node: Node | None) -> bool:
    return isinstance(node, Scalar) and node.value is True
