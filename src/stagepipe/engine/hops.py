"""The hops of a run, from what both their sides wrote on the board."""

from __future__ import annotations

from functools import reduce
from operator import add

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan import SINK, Forecast, HopPlan, foretell, seen_of
from stagepipe.report import HopRecord, RuleChange
from stagepipe.report.record import PHASES
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.timing import SEND_PHASES, Histogram, Region, StageWord, Word


def hops_of(supervisor: Supervisor) -> tuple[HopRecord, ...]:
    """All hops in the chain's order, those inside a process among them."""
    resources, board = supervisor.resources, supervisor.board
    groups = [[board.region(number) for number in numbers] for numbers in resources.groups]
    records = []
    for number, process in enumerate(supervisor.plan.processes):
        for at, (before, after) in enumerate(zip(process.stages, process.stages[1:], strict=False), 1):
            count = sum(region.stage(at)[StageWord.ITEMS] for region in groups[number])
            records.append(_fused(before.name, after.name, count))
        records.append(_hop(supervisor, number, groups[number], groups[number + 1]))
    return tuple(records)


def _fused(source: str, target: str, count: int) -> HopRecord:
    return HopRecord(
        source=source,
        target=target,
        mode="local",
        threshold_bytes=0,
        reason="fused: a call",
        messages={"local": count, "pipe": 0, "shared_memory": 0, "mixed": 0},
        bytes={"inline": 0, "copied": 0, "zero_copy": 0},
        cost=Histogram(),
        phases={name: Histogram() for name in PHASES},
    )


def _hop(supervisor: Supervisor, number: int, senders: list[Region], readers: list[Region]) -> HopRecord:
    plan = supervisor.plan
    hop, changes = plan.hops[number], supervisor.learner.changes(number)
    sent = [region.phases() for region in senders]
    read = [region.phases() for region in readers]
    phases = {name: reduce(add, (p[name] for p in (sent if name in SEND_PHASES else read))) for name in PHASES}
    seen = seen_of([region.sending_ledger for region in senders], [region.receiving_ledger for region in readers])
    forecast = foretell(seen, plan.curves)
    pickling_ns = sum(phases[name].percentile_ns(50) for name in ("encode_ns", "decode_ns")) if seen else 0
    messages, nbytes = _messages(senders), _bytes(senders)
    count = sum(messages.values())
    other_ns = _other_ns(forecast, messages)
    threshold = changes[-1].after.threshold_bytes if changes else hop.threshold_bytes
    return HopRecord(
        source=plan.processes[number].stages[-1].name,
        target=SINK if hop.target == SINK else hop.target,
        mode=hop.mode,
        threshold_bytes=threshold if hop.mode == "auto" else 0,
        reason=_reason(hop, sum(nbytes.values()) // count, forecast) if count else hop.reason,
        messages=messages,
        bytes=nbytes,
        cost=reduce(add, (p["cost_ns"] for p in read)),
        phases=phases,
        predicted_pipe_ns=forecast.pipe_ns + pickling_ns,
        predicted_shared_memory_ns=forecast.shared_memory_ns + pickling_ns,
        predicted_ns=forecast.likely_ns + pickling_ns,
        measured_ns=forecast.measured_ns + pickling_ns,
        saved_ns=(other_ns - forecast.taken_ns) * count,
        changes=tuple(
            RuleChange(c.messages, c.before.threshold_bytes, c.after.threshold_bytes, c.reason) for c in changes
        ),
    )


def _messages(senders: list[Region]) -> dict[str, int]:
    words = {"pipe": Word.PIPE, "shared_memory": Word.SHARED_MEMORY, "mixed": Word.MIXED}
    return {"local": 0, **{name: sum(region[word] for region in senders) for name, word in words.items()}}


def _bytes(senders: list[Region]) -> dict[str, int]:
    words = {"inline": Word.INLINE_BYTES, "copied": Word.COPIED_BYTES, "zero_copy": Word.ZERO_COPY_BYTES}
    return {name: sum(region[word] for region in senders) for name, word in words.items()}


def _other_ns(forecast: Forecast, messages: dict[str, int]) -> int:
    """What the way that most messages did not take would have cost."""
    mostly_pipe = messages["pipe"] > messages["shared_memory"] + messages["mixed"]
    return forecast.shared_memory_ns if mostly_pipe else forecast.pipe_ns


def _reason(hop: HopPlan, mean_bytes: int, forecast: Forecast) -> str:
    """`1.2 MB a message: shared memory 46 us, pipe 2.1 ms`, once the sizes are known."""
    figures = (
        f"{format_bytes(mean_bytes)} a message: shared memory {format_ns(forecast.shared_memory_ns)}, "
        f"pipe {format_ns(forecast.pipe_ns)}"
    )
    return figures if hop.mode == "auto" else f"{hop.reason}; {figures}"
