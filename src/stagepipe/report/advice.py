"""The one edit of the config to try, for each kind of limit; or, in words, why there is none. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagepipe.report.load import CONSUMER, THREADED, Load, cpus_used
from stagepipe.report.record import HopRecord, RunRecord

_DEARER = 1.1
"""A forced mode is worth changing when the other is predicted to be cheaper by more than the calibration's noise."""

_WHOLE = 10
"""Times as much from which a decimal says nothing."""

_GAIN = 0.95
"""Fusing must be expected to save at least a twentieth, as it takes a process away."""

_MOST_TIMES = 4
"""At most so many times the workers in one step: the measurement says little about what lies further off."""

_LEAST_CPU = 0.05
"""CPUs that a worker that only waits (a network, a disk) is still counted with."""

_ROOM = 0.75
"""Share of what a worker takes (of one CPU at most) that must be free for one more to be worth it."""


@dataclass(frozen=True)
class Advice:
    """`fix` is an override for the command line, or empty; `words` is for people, and says so when there is none."""

    fix: str
    words: str


def for_stage(load: Load, second: Load | None, record: RunRecord) -> Advice:
    """A stage is the limit and there are CPUs to spare: more workers, unless it can have only one."""
    at_source = load.members[0] is record.stages[0]
    order_point = next((m.name for m in load.members if m.name in record.order_points), None)
    if at_source or order_point is not None:
        last = load.members[-1].name
        if len(load.members) > 1 and last not in record.order_points:
            words = f"Give {last} a process of its own: {load.name} can have only one."
            return Advice(f"stages.{last}.fuse=false", words)
        words = (
            f"There is no edit to give: {load.costliest} keeps the order and so has one worker. "
            "Move work to the stages before it, or hand it less: smaller arrays, uint8 rather than float32."
        )
        return Advice("", words)
    return _more_workers(load, second, record)


def for_source(load: Load) -> Advice:
    """The source's own function is the limit; it has one process."""
    words = (
        f"There is no edit to give: {load.name} has one process. "
        "Let it yield names or indices and load them in a stage, which can have workers."
    )
    return Advice("", words)


def for_window(record: RunRecord) -> Advice:
    """Nobody is busy and the source waits for room."""
    if record.window > 0:
        wider = 2 * record.window
        return Advice(f"window={wider}", f"Let {wider} items be in flight instead of {record.window}.")
    return Advice("", "Set a larger `window`, or `order: any` where the order does not matter.")


def for_full_machine(top: Load, record: RunRecord) -> Advice:
    """All CPUs are in use, mostly by `top`."""
    if top.work_ns > 0 and top.cpu_ns > THREADED * top.work_ns and top.members[0] is not record.stages[0]:
        threads = top.cpu_ns / top.work_ns
        words = f"Each worker of {top.name} runs {threads:.1f} threads at a time: let it have one."
        return Advice(f"stages.{top.name}.threads=1", words)
    words = f"There is no edit to give: make {top.costliest} cheaper, or use a machine with more CPUs."
    return Advice("", words)


def for_hop(hop: HopRecord, load: Load | None, record: RunRecord, loads: tuple[Load, ...]) -> Advice:
    """A hop is the limit, at the process `load` (None: on a machine that is full)."""
    found = _other_mode(hop) or _fuse(hop, load, record, loads)
    if found is not None:
        return found
    movable = load is not None and load.name != CONSUMER and load.members[0] is not record.stages[0]
    if load is not None and movable and not any(m.name in record.order_points for m in load.members):
        return _more_workers(load, None, record)
    copying = hop.phases.get("copy_ns")
    if copying is not None and copying.sum_ns > hop.cost.sum_ns / 2:
        how = f"let {hop.source} write its result into `stagepipe.empty(...)`, and no copy is made"
    else:
        how = f"let {hop.source} send less: smaller arrays, uint8 rather than float32"
    return Advice("", f"There is no edit to give: {how}.")


def _other_mode(hop: HopRecord) -> Advice | None:
    """The mode in force is predicted to be the dearer one."""
    predicted = {"pipe": hop.predicted_pipe_ns, "shared_memory": hop.predicted_shared_memory_ns}
    if hop.mode not in predicted or not all(predicted.values()):
        return None
    other = "pipe" if hop.mode == "shared_memory" else "shared_memory"
    times = predicted[hop.mode] / predicted[other]
    if times < _DEARER:
        return None
    digits = 1 if times < _WHOLE else 0
    words = f"Let it go by {other}: by this machine's calibration {hop.mode} costs {times:.{digits}f} times as much."
    return Advice(f"stages.{hop.target}.transport={other}", words.replace("_", " "))


def _fuse(hop: HopRecord, load: Load | None, record: RunRecord, loads: tuple[Load, ...]) -> Advice | None:
    """Both ends in one process, where that process would then need less time than the slower one does now.

    The fused stage loses its own workers, so what its functions and its other hops cost is added to the workers of
    the stage before it; the hop between them and its own loop fall away.
    """
    before = next((x for x in loads if any(m.name == hop.source for m in x.members)), None)
    after = next((x for x in loads if x.members and x.name == hop.target), None)
    if before is None or after is None or hop.target in record.order_points:
        return None
    others_ns = after.hops_ns - after.side_ns(hop)
    together_ns = before.work_ns - before.side_ns(hop) + after.run_ns + others_ns
    now_ns = load.work_ns / load.workers if load is not None else record.wall_ns
    if together_ns / before.workers > _GAIN * now_ns:
        return None
    words = f"Run {hop.target} in the process of {hop.source}: the hop becomes a call."
    return Advice(f"stages.{hop.target}.fuse=true", words)


def _more_workers(load: Load, second: Load | None, record: RunRecord) -> Advice:
    """As many as bring this process level with the next, as far as the CPUs go; none where they are nearly all used."""
    ahead = load.use / max(second.use if second is not None else 0.0, 1 / _MOST_TIMES)
    level = math.ceil(load.workers * min(ahead, _MOST_TIMES))
    cpu_each = max(load.cpu_ns / max(load.active_ns, 1), _LEAST_CPU) if load.cpu_ns else 1.0
    spare = max(record.cpus - cpus_used(record), 0.0)
    free = f"{spare:.1f} of {record.cpus} CPUs are free"
    if spare < _ROOM * min(cpu_each, 1.0):
        words = f"There is no edit to give: only {free}. Make {load.costliest} cheaper, or take more CPUs."
        return Advice("", words)
    workers = max(load.workers + 1, min(level, load.workers + int(spare / cpu_each)))
    words = f"Give {load.name} {workers} workers instead of {load.workers}: {free}."
    return Advice(f"stages.{load.name}.workers={workers}", words)
