"""Refuses what Ray cannot do, by name and with the reason; what is ignored there, `find_engine_notes` says. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from stagepipe.config.document import ListNode, MapNode, Node, ScalarNode
from stagepipe.config.target_checks import StageTraits
from stagepipe.core import Placeholder, Problem
from stagepipe.spec import PipelineSpec

_ORDER_POINT_REASON: Final = "it comes after the order point `{}`, so it runs in the calling process"
_SINK_REASON: Final = "on Ray, a sink without several workers writes in the calling process"
_REASON_BY_KEY: Final = {
    "timeout": "Ray has no watchdog that ends a single item",
    "stateful": "Ray deals out blocks to workers in no fixed order, and a worker that is replaced has lost its state",
    "cpus": "Ray chooses the CPUs",
}
_PROCESS_KEYS: Final = ("env", "resources", "device")
"""Keys that need a process of the stage's own."""
_LOCAL_REPORT_KEYS: Final = ("trace", "prometheus")
_IGNORED_KEYS: Final = ("memory_bytes", "window", "preload", "start", "transport")


def check_engine(root: MapNode, stages: Sequence[MapNode], stage_traits: Sequence[StageTraits]) -> Iterator[Problem]:
    """Yield a problem for each key of a stage or a sink that the engine does not have."""
    engine = root.get("engine")
    source = root.get("source")
    sources = [source] if isinstance(source, MapNode) else []
    if not _is_ray(engine):
        yield from _check_ranges((*sources, *stages))
        return
    yield from _check_report(root.get("report"))
    sink = root.get("sink")
    sinks = [entry for entry in (sink.items if isinstance(sink, ListNode) else [sink]) if isinstance(entry, MapNode)]
    if isinstance(engine, MapNode) and isinstance(ray := engine.get("ray"), MapNode) and ray.get("inside") is not None:
        yield from _check_ranges((*sources, *stages))
        for entry in sinks:  # an island is a local pipeline, which has all other keys
            yield from _check_island_sink(entry)
        return
    for entry in sources:
        yield from _check_keys(entry, "", "source")
    order_point = ""
    for stage, traits in zip(stages, stage_traits, strict=True):
        order_point = order_point or (traits.label.rpartition(".")[2] if traits.is_order_point else "")
        yield from _check_keys(stage, "" if _has_pool(stage) else order_point, "stage")
    for entry in sinks:
        yield from _check_keys(entry, "", "sink")


def _check_island_sink(sink: MapNode) -> Iterator[Problem]:
    arguments = sink.get("with")
    if not (isinstance(arguments, MapNode) and arguments.get("path") is not None):
        yield sink.location.make_problem(
            "with `inside: local`, a sink needs a `path` in its `with`: each node writes to its own folder below it",
            "add `with: {path: ...}`, or run with `engine=local`",
        )


def _check_ranges(stages: Sequence[MapNode]) -> Iterator[Problem]:
    """Refuse a range of workers: the processes of the local engine start with the run."""
    for stage in stages:
        value = stage.get_text("workers")
        if value and "-" in value.strip().strip("-"):
            key_location = stage.entries["workers"].key_location
            maximum = value.rpartition("-")[2].strip()
            setting = key_location.syntax.format_setting("workers", Placeholder(maximum))
            message = "with `engine: local`, `workers` is no range: all workers start with the run"
            yield key_location.make_problem(message, f"write `{setting}`, or run with `engine=ray`")


def _check_report(report: Node | None) -> Iterator[Problem]:
    for key in _LOCAL_REPORT_KEYS:
        if isinstance(report, MapNode) and report.get(key) is not None:
            message = f"with `engine: ray`, a report has no `{key}`: Ray starts the processes itself"
            yield report.entries[key].key_location.make_problem(message, f"remove `{key}`, or run with `engine=local`")


def _check_keys(stage: MapNode, order_point: str, kind: str) -> Iterator[Problem]:
    for key, entry in stage.entries.items():
        if stage.get(key) is None or (key == "stateful" and not _is_true(entry.node)):
            continue
        reason = _REASON_BY_KEY.get(key, "")
        is_in_caller = bool(order_point) or (kind == "sink" and not _has_pool(stage))
        if key in _PROCESS_KEYS and is_in_caller:
            reason = _SINK_REASON if kind == "sink" else _ORDER_POINT_REASON.format(order_point)
        elif key == "device" and stage.get_text("device") != "cpu" and not _asks_for_gpus(stage):
            reason = "Ray gives a worker no GPU that its stage does not ask for"
        if reason:
            setting = entry.key_location.syntax.format_setting("resources", {"gpus": 1})
            hint = f"add `{setting}`" if key == "device" and not is_in_caller else f"remove `{key}`"
            message = f"with `engine: ray`, a {kind} takes no `{key}`: {reason}"
            yield entry.key_location.make_problem(message, f"{hint}, or run with `engine=local`")


def find_engine_notes(spec: PipelineSpec) -> Iterator[str]:
    """Yield what Ray ignores, because it changes no item."""
    if spec.engine.kind != "ray" or spec.engine.inside is not None:
        return
    ignored = [key for key in _IGNORED_KEYS if getattr(spec, key) != PipelineSpec.__dataclass_fields__[key].default]
    names = [f"`{key.removesuffix('_bytes')}`" for key in ignored]
    if names:
        yield f"engine: ray does without {', '.join(names)}: Ray starts the processes and moves the items"
    driver_stages = list(_find_driver_stages(spec))
    if driver_stages:
        yield (
            f"engine: ray runs {', '.join(driver_stages)} in the calling process, one after the other: what has one "
            "worker, or `batch`, after an order point"
        )


def _find_driver_stages(spec: PipelineSpec) -> Iterator[str]:
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


def _is_ray(engine: Node | None) -> bool:
    if isinstance(engine, ScalarNode):
        return bool(engine.value == "ray")
    return isinstance(engine, MapNode) and engine.get("ray") is not None


def _asks_for_gpus(stage: MapNode) -> bool:
    resources = stage.get("resources")
    return isinstance(resources, MapNode) and resources.get("gpus") is not None


def _is_true(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is True
