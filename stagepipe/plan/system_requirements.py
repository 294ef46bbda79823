"""Checks the system's limits against the needs of a plan, before anything starts.

The needs are counted: the resources of each worker in the caller's process and in its own. The counts were measured
with /proc/PID/fd and /proc/PID/status; tests/unit/plan/test_system_requirements.py and
tests/integration/test_system_limits.py check them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stagepipe.core import UsageError, format_bytes
from stagepipe.costs import MADE_UP_CURVES
from stagepipe.machine import SystemLimits, detect_machine, read_system_limits
from stagepipe.plan.model import Plan
from stagepipe.plan.planner import PARTS_MEMORY_FRACTION, lower_sinks, make_plan
from stagepipe.spec import PipelineSpec
from stagepipe.transport import era_span_bytes

_FDS_PER_WORKER = 10
"""In the caller's process: the arena, its mapping, both ends of the release pipe, the wake event, the lifetime pipe,
the crash log, the pidfd, the output pipe and the control connection. A worker opens three for each worker before it, so
the caller's process runs short first.

"""
_FDS_PER_HOP = 2
_BASE_FDS = 40
"""The board, the wake events, zmq's descriptors, those open only during the start, and some for the user's files."""
_TASKS_PER_WORKER = 4
"""The main thread, the control thread and two threads of zmq. A stage may start more."""
_BASE_TASKS = 6
_WORKER_ADDRESS_SPACE_BYTES = 400 << 20
"""A Python process with NumPy, including the stacks and heaps of its threads. torch adds gigabytes."""
_MIN_SUGGESTED_MEMORY_BYTES = 16 << 20
"""A smaller `memory` is not suggested."""


def check_plan_limits(plan: Plan) -> None:
    """Raise UsageError if a system limit is too low. It names every such limit, the need and a fix."""
    shortages = list(find_shortages(plan, read_system_limits(count_required_tasks(plan))))
    if shortages:
        raise UsageError("\n".join(f"the run cannot start: {shortage}" for shortage in shortages))


def check_spec_limits(spec: PipelineSpec) -> tuple[str, ...]:
    """Check the limits for a spec, before any measurement or probe. Returns the remaining warnings."""
    plan = _make_uncalibrated_plan(lower_sinks(spec))
    check_plan_limits(plan)
    machine = detect_machine()
    return (
        *find_memory_warnings(plan, machine.memory_bytes),
        *find_cpu_warnings(spec, machine.cpus),
        *find_gpu_warnings(spec, machine.cuda_devices),
    )


def find_cpu_warnings(spec: PipelineSpec, cpus: int) -> Iterator[str]:
    """Yield a warning for the source and each stage with more workers than CPUs. Pure."""
    for stage in (spec.source, *spec.stages):
        if stage.workers != "auto" and stage.workers > cpus:
            kind = "" if stage is spec.source else "stage "
            yield (
                f"{kind}{stage.name} has {stage.workers} workers on {cpus} CPU{'s' if cpus != 1 else ''}: more workers "
                "than CPUs help only a stage that waits for files, a network or a GPU"
            )


def find_gpu_warnings(spec: PipelineSpec, cuda_devices: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each stage whose GPU is not visible to this process. Pure."""
    for stage in spec.stages:
        kind, _, index = (stage.device or "").partition(":")
        if kind == "cuda" and int(index or 0) >= len(cuda_devices):
            seen = f"shows {len(cuda_devices)}" if cuda_devices else "has none, or hides it"
            device = f"`device: {stage.device}`"
            yield f"stage {stage.name} has {device}, but this machine {seen} (CUDA_VISIBLE_DEVICES, the driver)"


def find_memory_warnings(plan: Plan, max_memory_bytes: int) -> Iterator[str]:
    """Yield a warning for each setting that may fail on a machine with `max_memory_bytes`."""
    if plan.memory_bytes > max_memory_bytes:
        yield (
            f"`memory` is {format_bytes(plan.memory_bytes)}, but the machine or the cgroup allows "
            f"{format_bytes(max_memory_bytes)}: the kernel may kill workers before all of it is used; lower `memory`"
        )


def count_required_tasks(plan: Plan) -> int:
    """The number of processes and threads that a run starts, without those that stages start."""
    return _TASKS_PER_WORKER * sum(process.workers for process in plan.processes) + _BASE_TASKS


def count_slots_that_fit(plan: Plan) -> int:
    """Return the number of slots that a process may have within the system limits, which all processes share.

    A process keeps at least its workers at the start, and gets at most its slots in `plan`.
    """
    limits = read_system_limits(count_required_tasks(plan))
    most = max(process.slot_count for process in plan.processes)
    return next((slots for slots in range(most, 1, -1) if not any(find_shortages(limit_slots(plan, slots), limits))), 1)


def limit_slots(plan: Plan, slots: int) -> Plan:
    """Copy a plan with at most `slots` slots in each process, but no fewer than its workers at the start."""
    processes = (
        process
        if process.worker_bounds is None
        else replace(
            process,
            worker_bounds=process.worker_bounds._replace(
                maximum=max(min(process.worker_bounds.maximum, slots), process.workers)
            ),
        )
        for process in plan.processes
    )
    return replace(plan, processes=tuple(processes))


def find_shortages(plan: Plan, limits: SystemLimits) -> Iterator[str]:
    """Yield a sentence for each limit that is too low. Pure.

    Descriptors and address space must suffice for the maximum number of workers, processes for those at the start.
    """
    workers = sum(process.slot_count for process in plan.processes)
    fds = _FDS_PER_WORKER * workers + _FDS_PER_HOP * len(plan.hops) + len(plan.segments) + _BASE_FDS
    if limits.max_fds is not None and limits.free_fds is not None and limits.free_fds < fds:
        yield (
            f"{workers} workers need {fds} file descriptors, but only {max(limits.free_fds, 0)} of {limits.max_fds} "
            f"are free (`ulimit -n`); raise it to {_round_up_to_1024(limits.max_fds - limits.free_fds + fds)}, "
            "set fewer `workers` or fuse stages"
        )
    started, tasks = sum(process.workers for process in plan.processes), count_required_tasks(plan)
    for limit, free in limits.free_tasks_by_limit:
        if free < tasks:
            yield (
                f"{started} workers need {tasks} processes and threads, but only {max(free, 0)} are free ({limit}); "
                "raise the limit, set fewer `workers` or fuse stages"
            )
    yield from _find_address_space_shortage(plan, limits)
    yield from _find_part_shortage(plan)
    bytes_needed = era_span_bytes(plan.memory_bytes) * (plan.max_restarts + 1)
    if limits.max_file_bytes is not None and limits.max_file_bytes < bytes_needed:
        fits = int(limits.max_file_bytes / (plan.max_restarts + 1) / era_span_bytes(1 << 20) * (1 << 20))
        yield (
            f"shared memory needs sparse in-memory files of {format_bytes(bytes_needed)}, but files may have only "
            f"{format_bytes(limits.max_file_bytes)} (`ulimit -f`); run `ulimit -f unlimited`"
            f"{_format_memory_hint(fits)}"
        )


def _find_part_shortage(plan: Plan) -> Iterator[str]:
    """Yield the shortage of shared memory for one full part of the sinks. Only as many are in flight as fit."""
    for stage in (process.first_stage for process in plan.processes):
        if stage.is_order_point and stage.sink_path:
            part_bytes = stage.target.arguments["max_bytes"]
            available_bytes = int(plan.memory_bytes * PARTS_MEMORY_FRACTION)
            if part_bytes > available_bytes:
                yield (
                    f"a part for the sinks has {format_bytes(part_bytes)}, but only {format_bytes(available_bytes)} of "
                    f"`memory` ({format_bytes(plan.memory_bytes)}) are for parts; raise `memory` to "
                    f"{-(-part_bytes // int(PARTS_MEMORY_FRACTION * 10**6))}MB, or set a smaller `part_bytes` in the "
                    f"sink's `with`, such as {max(available_bytes // 2, 1)}"
                )


def _find_address_space_shortage(plan: Plan, limits: SystemLimits) -> Iterator[str]:
    """Yield the shortage of the process that maps the most arenas: a worker, or the caller's process."""
    if limits.max_address_space_bytes is None or limits.free_address_space_bytes is None:
        return
    readers = [(process.slot_count + 1, _WORKER_ADDRESS_SPACE_BYTES) for process in plan.processes[:-1]]
    readers.append((plan.processes[-1].slot_count, limits.max_address_space_bytes - limits.free_address_space_bytes))
    arenas, base_bytes = max(readers, key=lambda reader: reader[0] * era_span_bytes(plan.memory_bytes) + reader[1])
    needed = arenas * era_span_bytes(plan.memory_bytes) + base_bytes
    if limits.max_address_space_bytes < needed:
        fits = int((limits.max_address_space_bytes - base_bytes) / arenas / era_span_bytes(1 << 20) * (1 << 20))
        yield (
            f"a process needs {format_bytes(needed)} of address space to map the shared memory of {arenas} workers "
            f"(most of it stays unused), but may have only {format_bytes(limits.max_address_space_bytes)} "
            f"(`ulimit -v`); run `ulimit -v unlimited`{_format_memory_hint(fits)}"
        )


def _format_memory_hint(memory_bytes: int) -> str:
    return f", or set `memory={memory_bytes >> 20}MiB`" if memory_bytes >= _MIN_SUGGESTED_MEMORY_BYTES else ""


def _round_up_to_1024(count: int) -> int:
    """Round up to a multiple of 1,024."""
    return -(-count // 1024) * 1024


def _make_uncalibrated_plan(spec: PipelineSpec) -> Plan:
    """A plan with made-up cost curves and without GPUs. Neither affects the limits."""
    without_devices = replace(spec, stages=tuple(replace(stage, device=None) for stage in spec.stages))  # lowered
    return make_plan(without_devices, detect_machine(), MADE_UP_CURVES)
