"""Refuses the keys that an engine does not have, by name and with the reason, and notes those that it ignores.

Which these are, the `Capabilities` of the engine say. Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stagepipe.config.document import ListNode, MapNode, Node, ScalarNode
from stagepipe.config.target_checks import StageTraits
from stagepipe.core import Problem
from stagepipe.spec import (
    Capabilities,
    EngineDeclaration,
    EngineSpec,
    PipelineSpec,
    find_engine,
    get_capabilities,
    list_engines,
)

_PROCESS_KEYS: Final = ("env", "resources", "device")
"""Keys that need a process of the stage's own."""
_OUTPUT_KEYS: Final = ("trace", "prometheus")


def check_engine(root: MapNode, stages: Sequence[MapNode], stage_traits: Sequence[StageTraits]) -> Iterator[Problem]:
    """Yield a problem for each key of a stage or a sink that the engine does not have."""
    engine, capabilities = _read_engine(root.get("engine"))
    source, sink = root.get("source"), root.get("sink")
    sources = [source] if isinstance(source, MapNode) else []
    sinks = [entry for entry in (sink.items if isinstance(sink, ListNode) else [sink]) if isinstance(entry, MapNode)]
    if not capabilities.takes_worker_ranges:
        yield from _check_ranges((*sources, *stages))
    if capabilities.refused_outputs:
        yield from _check_report(engine, capabilities, root.get("report"))
    if not capabilities.yields_items:
        for entry in sinks:
            yield from _check_replicated_sink(entry)
    keys = _KeyChecks(engine, capabilities)
    for entry in sources:
        yield from keys.check(entry, "", "source")
    order_point = ""
    for stage, traits in zip(stages, stage_traits, strict=True):
        order_point = order_point or (traits.label.rpartition(".")[2] if traits.is_order_point else "")
        yield from keys.check(stage, "" if _has_pool(stage) else order_point, "stage")
    for entry in sinks:
        yield from keys.check(entry, "", "sink")


def _read_engine(node: Node | None) -> tuple[EngineDeclaration, Capabilities]:
    """Return the engine of a config, and what it can do. An unknown engine is another problem."""
    name, options = EngineSpec().kind, dict[str, str | None]()
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        name = node.value
    elif isinstance(node, MapNode):
        given = [key for key in node.entries if node.get(key) is not None]
        name = given[0] if given else name
        if isinstance(inner := node.get(name), MapNode):
            options = {key: inner.get_text(key) for key in inner.entries if inner.get(key) is not None}
    engine = find_engine(name) or list_engines()[0]
    return engine, engine.get_capabilities(options)


def _check_replicated_sink(sink: MapNode) -> Iterator[Problem]:
    arguments = sink.get("with")
    if not (isinstance(arguments, MapNode) and arguments.get("path") is not None):
        yield sink.location.make_problem(
            "with `inside: local`, a sink needs a `path` in its `with`: each node writes to its own folder below it",
            "add `with: {path: ...}`, or run with `engine=local`",
        )


def _check_ranges(stages: Sequence[MapNode]) -> Iterator[Problem]:
    """Refuse a range of workers, which start with the run."""
    for stage in stages:
        value = stage.get_text("workers")
        if value and "-" in value.strip().strip("-"):
            key_location = stage.entries["workers"].key_location
            maximum = value.rpartition("-")[2].strip()
            message = "with `engine: local`, `workers` is no range: all workers start with the run"
            takers = [f"`engine={engine.name}`" for engine in list_engines() if engine.capabilities.takes_worker_ranges]
            others = f", or run with {' or '.join(takers)}" if takers else ""
            yield key_location.make_problem(message, f"write `workers: {maximum}`{others}")


def _check_report(engine: EngineDeclaration, capabilities: Capabilities, report: Node | None) -> Iterator[Problem]:
    for key in _OUTPUT_KEYS:
        if isinstance(report, MapNode) and report.get(key) is not None:
            message = f"with `engine: {engine.name}`, a report has no `{key}`: {capabilities.refused_outputs}"
            yield report.entries[key].key_location.make_problem(message, f"remove `{key}`, or {engine.way_out}")


@dataclass(frozen=True)
class _KeyChecks:
    """The checks of the keys of a source, a stage or a sink."""

    engine: EngineDeclaration
    capabilities: Capabilities

    def check(self, stage: MapNode, order_point: str, kind: str) -> Iterator[Problem]:
        """Yield a problem for each key that is refused. `order_point`: that after which the calling process runs it."""
        is_in_caller = bool(order_point) or (
            self.capabilities.runs_tail_in_caller and kind == "sink" and not _has_pool(stage)
        )
        for key, entry in stage.entries.items():
            if stage.get(key) is None or (key == "stateful" and not _is_true(entry.node)):
                continue
            if reason := self._find_reason(stage, key, order_point, is_in_caller=is_in_caller):
                is_missing = key == "device" and not is_in_caller
                hint = "add `resources: {gpus: 1}`" if is_missing else f"remove `{key}`"
                message = f"with `engine: {self.engine.name}`, a {kind} takes no `{key}`: {reason}"
                yield entry.key_location.make_problem(message, f"{hint}, or {self.engine.way_out}")

    def _find_reason(self, stage: MapNode, key: str, order_point: str, *, is_in_caller: bool) -> str:
        title = self.engine.title
        if key in _PROCESS_KEYS and is_in_caller and self.capabilities.runs_tail_in_caller:
            if order_point:
                return f"it comes after the order point `{order_point}`, so it runs in the calling process"
            return f"on {title}, a sink without several workers writes in the calling process"
        if key == "device" and self.capabilities.takes_resources and not _asks_for_gpus(stage):
            is_cpu = stage.get_text("device") == "cpu"
            return "" if is_cpu else f"{title} gives a worker no GPU that its stage does not ask for"
        return self.capabilities.refused_keys.get(key, "")


def find_engine_notes(spec: PipelineSpec) -> Iterator[str]:
    """Yield what the engine ignores, because it changes no item."""
    capabilities = get_capabilities(spec.engine)
    defaults = PipelineSpec.__dataclass_fields__
    ignored = [key for key in capabilities.ignored_keys if getattr(spec, key) != defaults[key].default]
    names = [f"`{key.removesuffix('_bytes')}`" for key in ignored]
    if names:
        yield f"engine: {spec.engine} does without {', '.join(names)}: {capabilities.ignored_reason}"
    tail = list(_find_tail(spec)) if capabilities.runs_tail_in_caller else []
    if tail:
        yield (
            f"engine: {spec.engine} runs {', '.join(tail)} in the calling process, one after the other: what has one "
            "worker, or `batch`, after an order point"
        )


def _find_tail(spec: PipelineSpec) -> Iterator[str]:
    is_after = False
    for stage in spec.stages:
        if is_after and stage.fuse is not True and (stage.workers == 1 or stage.batch is not None):
            yield stage.name if stage.workers == 1 else f"{stage.name} ({stage.format_workers()} workers)"
        is_after = is_after or stage.is_order_point


def _has_pool(stage: MapNode) -> bool:
    """Whether a stage after an order point, or a sink, is a pool of actors: it has several workers, and no batches."""
    workers = stage.get("workers")
    is_several = isinstance(workers, ScalarNode) and isinstance(workers.value, int) and workers.value > 1
    return (is_several or "-" in (stage.get_text("workers") or "")) and stage.get("batch") is None


def _asks_for_gpus(stage: MapNode) -> bool:
    resources = stage.get("resources")
    return isinstance(resources, MapNode) and resources.get("gpus") is not None


def _is_true(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is True
