"""A spec and a machine become a plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.config import PipelineSpec, StageSpec
from stagepipe.plan.curves import Curves
from stagepipe.plan.devices import devices_of
from stagepipe.plan.model import SINK, SOURCE, HopPlan, Plan, ProcessPlan, Role, StagePlan, StretchPlan
from stagepipe.plan.negotiator import negotiate

ORDER_POINTS = ("stagepipe.stages.Batch", "stagepipe.stages.Shuffle")
_MEMORY_SHARE = 0.25
_WINDOW = 16
_ROOMY_WINDOW = 256
"""A packet pipe holds at most 256 packets; more items in flight than that wait in processes."""


@dataclass(frozen=True)
class Machine:
    """What the plan needs to know of a machine: processors that may be used, bytes of memory, the names of its GPUs."""

    cpus: int
    memory_bytes: int
    cuda_devices: tuple[str, ...] = ()


def make_plan(spec: PipelineSpec, machine: Machine, curves: Curves, *, limit: int | None = None) -> Plan:
    """The plan of a run of at most `limit` source items."""
    processes = _processes(spec, machine)
    hops = tuple(
        _hop(source, target, spec, curves) for source, target in zip(processes, (*processes[1:], None), strict=True)
    )
    memory = spec.memory_bytes or int(machine.memory_bytes * _MEMORY_SHARE)
    return Plan(
        name=spec.name,
        processes=processes,
        hops=hops,
        stretches=_stretches(spec, processes),
        memory_bytes=memory,
        seed=spec.seed,
        any_order=spec.order == "any",
        curves=curves,
        cpus=machine.cpus,
        config_dir=spec.config_dir,
        sink=spec.sink,
        limit=limit,
        config_sha256=spec.sha256,
        source_sha256=spec.source_sha256,
        max_restarts=spec.max_restarts,
        max_skipped=spec.max_skipped,
    )


def is_order_point(stage: StageSpec | StagePlan) -> bool:
    """Whether a stage restores order and runs in one process: Batch, Shuffle."""
    uses = stage.target.uses
    name = uses.replace(":", ".") if isinstance(uses, str) else f"stagepipe.stages.{getattr(uses, '__name__', '')}"
    return name in ORDER_POINTS and (isinstance(uses, str) or getattr(uses, "order_point", False))


def _processes(spec: PipelineSpec, machine: Machine) -> tuple[ProcessPlan, ...]:
    source = StagePlan(SOURCE, spec.source, retries=spec.source_retries, on_error=spec.source_on_error)
    groups: list[tuple[StageSpec | None, list[StagePlan]]] = [(None, [source])]
    for number, stage in enumerate(spec.stages, 1):
        planned = StagePlan(
            stage.name,
            stage.target,
            stage.field,
            stage.as_,
            stage.batch,
            stage.mutable,
            stage.reseed,
            stage.timeout_ns,
            stage.start_timeout_ns,
            stage.retries,
            stage.on_error,
            stage.stateful,
            number,
        )
        if stage.fuse:
            groups[-1][1].append(planned)
        else:
            groups.append((stage, [planned]))
    processes, stretch = [], 0
    for head, stages in groups:
        if head is None:
            processes.append(ProcessPlan(Role.SOURCE, tuple(stages), 1, 0, 0))
            continue
        ordered = is_order_point(head)
        workers = 1 if ordered or head.workers == "auto" else head.workers
        role = Role.ORDER_POINT if ordered else Role.STAGE
        feeds = stretch + ordered
        devices = devices_of(head.name, head.device, workers, machine.cuda_devices)
        processes.append(
            ProcessPlan(role, tuple(stages), workers, stretch, feeds, head.threads, head.cpus, dict(head.env), devices)
        )
        stretch = feeds
    return tuple(processes)


def _hop(source: ProcessPlan, target: ProcessPlan | None, spec: PipelineSpec, curves: Curves) -> HopPlan:
    by_name = {stage.name: stage for stage in spec.stages}
    own = by_name[target.name].transport if target is not None else "auto"
    mode = spec.transport.mode if own == "auto" else own
    workers = (source.workers, 1 if target is None else target.workers)
    choice = negotiate(mode, spec.transport.threshold_bytes, workers, curves)
    name = SINK if target is None else target.name
    packets = spec.window or _ROOMY_WINDOW
    return HopPlan(
        source.name,
        name,
        choice.mode,
        choice.threshold_bytes,
        choice.reason,
        packets,
        choice.large_in_pipe,
        fixed=spec.transport.threshold_bytes is not None,
    )


def _stretches(spec: PipelineSpec, processes: tuple[ProcessPlan, ...]) -> tuple[StretchPlan, ...]:
    count = processes[-1].feeds + 1
    stretches = []
    per_item = 1
    for number in range(count):
        inside = [p for p in processes if p.role is Role.STAGE and p.reads == number]
        needed = max([1, *(p.stages[0].batch.size * p.workers for p in inside if p.stages[0].batch)])
        if spec.window is not None:
            window = max(-(-spec.window // per_item), needed)
            stretches.append(StretchPlan(window, window))
        else:
            workers = sum(p.workers for p in inside)
            window = max(_WINDOW if number == 0 else 4, 4 * workers, 2 * needed)
            stretches.append(StretchPlan(window, max(_ROOMY_WINDOW, window)))
        ends = next((p for p in processes if p.role is Role.ORDER_POINT and p.reads == number), None)
        if ends is not None and str(ends.stages[0].target.label).endswith("Batch"):
            size = ends.stages[0].target.arguments.get("size", 1)
            per_item *= size if isinstance(size, int) else 1
    return tuple(stretches)
