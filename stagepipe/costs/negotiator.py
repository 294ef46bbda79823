"""Chooses the transport of a hop and says why. Pure: cost curves in, rule and reason out. Runs in the caller's process.

`negotiate` makes the rule of a hop from the curves. `decide_transfer` prices the placement of one item by the rule, and
names the figures behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagepipe.core import format_bytes, format_ns
from stagepipe.costs.curves import CostCurves
from stagepipe.transport import (
    ALWAYS_PIPE_THRESHOLD_BYTES,
    MAX_INLINE_BYTES,
    PIPE,
    SHARED_MEMORY,
    Placement,
    TransportRule,
    Way,
    find_transport_target,
    load_transport,
)


@dataclass(frozen=True)
class PayloadBuffer:
    """A buffer of an item: the bytes of an array or tensor. `is_in_arena`: it is in shared memory already."""

    nbytes: int
    is_in_arena: bool = False
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class TransferDecision:
    """The mode of each buffer of an item, in order, and of its pickle, and the cost of carrying the item.

    `cost_ns` is the cost as decided; `pipe_ns` and `shared_memory_ns` are the costs in either fixed mode.
    """

    modes: tuple[str, ...]
    pickle_mode: str
    cost_ns: int
    pipe_ns: int
    shared_memory_ns: int
    reason: str


def negotiate(mode: str, threshold_bytes: int | None, workers: tuple[int, int], curves: CostCurves) -> TransportRule:
    """Choose the rule of a hop. `workers` counts the processes on its two sides; `threshold_bytes` is the config's.

    >>> curves = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
    >>> negotiate("auto", None, (1, 1), curves).threshold_bytes
    2419
    """
    is_one_to_one = workers == (1, 1)
    if mode == PIPE:
        reason = "forced by the config"
        if not is_one_to_one:
            reason += "; between several workers the pipe carries only what fits a packet"
        return TransportRule(
            mode=PIPE, threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES, reason=reason, large_in_pipe=is_one_to_one
        )
    if mode == SHARED_MEMORY:
        return TransportRule(mode=SHARED_MEMORY, threshold_bytes=1, reason="forced by the config")
    if mode != "auto":
        return TransportRule(mode=mode, threshold_bytes=MAX_INLINE_BYTES, reason="forced by the config")
    if threshold_bytes is not None:
        reason = f"threshold {format_bytes(threshold_bytes)} from the config"
        return TransportRule(threshold_bytes=max(threshold_bytes, 1), reason=reason)
    return make_auto_rule(curves, is_one_to_one=is_one_to_one)


def make_auto_rule(curves: CostCurves, *, is_one_to_one: bool) -> TransportRule:
    """The rule of `auto`: shared memory from the size where it is cheaper, or from a packet's size if that is less.

    Between two single workers an item can go through the pipe in pieces, so there the packet sets no limit.
    """
    crossover_bytes = curves.find_crossover_bytes()
    threshold = crossover_bytes if is_one_to_one else min(crossover_bytes, MAX_INLINE_BYTES)
    reason = (
        f"shared memory from {format_bytes(threshold)} up: {format_ns(curves.copied(threshold))} there, "
        f"{format_ns(curves.pipe(threshold))} by pipe, measured on this machine"
    )
    large_in_pipe = crossover_bytes > MAX_INLINE_BYTES and is_one_to_one
    return TransportRule(threshold_bytes=threshold, reason=reason, large_in_pipe=large_in_pipe)


def decide_transfer(
    buffers: Sequence[PayloadBuffer], rule: TransportRule, curves: CostCurves, *, pickle_bytes: int = 200
) -> TransferDecision:
    """Apply a hop's rule to the buffers of an item. Returns their modes, the costs and the reason.

    `pickle_bytes` is the size of the rest of the item, with its arrays below 3.5 KB. The costs leave out pickling.

    >>> curves = CostCurves.from_points((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
    >>> rule = TransportRule(threshold_bytes=3584)
    >>> decide_transfer([PayloadBuffer(1_200_000, name="image")], rule, curves).reason
    'image, 1.2 MB: shared memory 68 µs, pipe 2.3 ms'
    """
    placement = rule.place([buffer.nbytes for buffer in buffers], pickle_bytes)
    all_inline = Placement(ways=(Way.INLINE,) * len(buffers))
    all_shared = Placement(ways=(Way.SHARED,) * len(buffers), is_pickle_copied=not buffers)
    carried_by = SHARED_MEMORY if rule.mode in {"auto", PIPE} else rule.mode
    target = find_transport_target(rule.mode)
    carry_ns = load_transport(target).estimate_ns if target else curves.copied
    cost_ns, pipe_ns, shared_ns = (
        _price(each, buffers, curves, pickle_bytes, carry)
        for each, carry in ((placement, carry_ns), (all_inline, curves.copied), (all_shared, curves.copied))
    )
    payload = _describe_payload(buffers, pickle_bytes)
    reason = f"{payload}: shared memory {format_ns(shared_ns)}, pipe {format_ns(pipe_ns)}"
    if rule.mode != "auto":
        reason += f"; {rule.mode.replace('_', ' ')} is {rule.reason}"
    return TransferDecision(
        modes=tuple(PIPE if way is Way.INLINE else carried_by for way in placement.ways),
        pickle_mode=carried_by if placement.is_pickle_copied else PIPE,
        cost_ns=cost_ns,
        pipe_ns=pipe_ns,
        shared_memory_ns=shared_ns,
        reason=reason,
    )


def _price(
    placement: Placement,
    buffers: Sequence[PayloadBuffer],
    curves: CostCurves,
    pickle_bytes: int,
    carry_ns: Callable[[int], int],
) -> int:
    """The cost of carrying an item whose parts go as `placement` says. `carry_ns`: of what is not in the packet."""
    inline_bytes, copied_bytes = (0, pickle_bytes) if placement.is_pickle_copied else (pickle_bytes, 0)
    inline_count = 0
    passed_on_bytes = 0
    for buffer, way in zip(buffers, placement.ways, strict=True):
        if way is Way.INLINE:
            inline_bytes += buffer.nbytes
            inline_count += 1
        elif way is Way.SHARED and buffer.is_in_arena:
            passed_on_bytes = max(passed_on_bytes, buffer.nbytes)
        else:
            copied_bytes += buffer.nbytes
    extra_inline_ns, extra_shared_ns = curves.extra_buffer_ns
    if not copied_bytes and not passed_on_bytes:
        return curves.pipe(inline_bytes) + extra_inline_ns * max(inline_count - 1, 0)
    shared_ns = carry_ns(copied_bytes) if copied_bytes else curves.passed_on(passed_on_bytes)
    shared_ns += extra_shared_ns * max(len(buffers) - inline_count - 1, 0)
    return shared_ns + curves.pipe(inline_bytes) - curves.pipe(0) + extra_inline_ns * inline_count


def _describe_payload(buffers: Sequence[PayloadBuffer], pickle_bytes: int) -> str:
    total = format_bytes(sum(buffer.nbytes for buffer in buffers))
    if not buffers:
        return f"{format_bytes(pickle_bytes)} of pickle"
    if len(buffers) == 1:
        return f"{buffers[0].name or 'one buffer'}, {total}"
    largest = max(buffers, key=lambda buffer: buffer.nbytes)
    suffix = f" (largest: {largest.name})" if largest.name else ""
    return f"{len(buffers)} buffers{suffix}, {total}"
