"""Chooses the transport of a hop and says why. Pure: cost curves in, rule and reason out. Runs in the caller's process.

`negotiate` makes the rule of a hop from the curves. `decide_transfer` applies the rule to the buffers of one item, as
the packer of the transport does, and names the figures behind the decision. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepipe.core import format_bytes, format_ns
from stagepipe.costs.curves import CostCurves
from stagepipe.transport import ALWAYS_PIPE_THRESHOLD_BYTES, MAX_INLINE_BYTES

PIPE = "pipe"
"""The config's name of the mode that sends everything through the pipe."""
SHARED_MEMORY = "shared_memory"
"""The config's name of the mode that sends every buffer through shared memory."""


@dataclass(frozen=True)
class TransportRule:
    """The transport rule of a hop.

    A buffer of `threshold_bytes` or more goes to shared memory. So do all smaller ones if their sum reaches it.
    `large_in_pipe`: an item below the threshold that exceeds a packet goes through the pipe in pieces.
    """

    mode: str
    threshold_bytes: int
    reason: str
    large_in_pipe: bool = False


@dataclass(frozen=True)
class PayloadBuffer:
    """A buffer of an item: the bytes of an array or tensor. `is_in_arena`: it is in shared memory already."""

    nbytes: int
    is_in_arena: bool = False
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class TransferDecision:
    """The mode of each buffer of an item, in order, and the cost of carrying the item.

    `cost_ns` is the cost as decided; `pipe_ns` and `shared_memory_ns` are the costs in either fixed mode.
    """

    modes: tuple[str, ...]
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
        return TransportRule(PIPE, ALWAYS_PIPE_THRESHOLD_BYTES, reason, large_in_pipe=is_one_to_one)
    if mode == SHARED_MEMORY:
        return TransportRule(SHARED_MEMORY, 1, "forced by the config")
    if threshold_bytes is not None:
        reason = f"threshold {format_bytes(threshold_bytes)} from the config"
        return TransportRule("auto", max(threshold_bytes, 1), reason)
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
    return TransportRule("auto", threshold, reason, large_in_pipe=large_in_pipe)


def decide_transfer(
    buffers: Sequence[PayloadBuffer], rule: TransportRule, curves: CostCurves, *, pickle_bytes: int = 200
) -> TransferDecision:
    """Apply a hop's rule to the buffers of an item. Returns their modes, the costs and the reason.

    `pickle_bytes` is the size of the rest of the item, with its arrays below 3.5 KB. The costs leave out pickling.

    >>> curves = CostCurves.from_points((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
    >>> decide_transfer([PayloadBuffer(1_200_000, name="image")], TransportRule("auto", 3584, ""), curves).reason
    'image, 1.2 MB: shared memory 68 µs, pipe 2.3 ms'
    """
    shared = _select_shared_buffers(buffers, rule, pickle_bytes)
    modes = tuple(SHARED_MEMORY if index in shared else PIPE for index in range(len(buffers)))
    pipe_ns = _estimate_cost_ns(buffers, set(), curves, pickle_bytes, is_pickle_shared=False)
    shared_ns = _estimate_cost_ns(buffers, set(range(len(buffers))), curves, pickle_bytes, is_pickle_shared=not buffers)
    is_pickle_shared = (
        not rule.large_in_pipe and _compute_inline_bytes(buffers, shared, pickle_bytes) > MAX_INLINE_BYTES
    )
    cost_ns = _estimate_cost_ns(buffers, shared, curves, pickle_bytes, is_pickle_shared=is_pickle_shared)
    payload = _describe_payload(buffers, pickle_bytes)
    reason = f"{payload}: shared memory {format_ns(shared_ns)}, pipe {format_ns(pipe_ns)}"
    if rule.mode != "auto":
        reason += f"; {rule.mode.replace('_', ' ')} is {rule.reason}"
    return TransferDecision(modes=modes, cost_ns=cost_ns, pipe_ns=pipe_ns, shared_memory_ns=shared_ns, reason=reason)


def _select_shared_buffers(buffers: Sequence[PayloadBuffer], rule: TransportRule, pickle_bytes: int) -> set[int]:
    """The indices of the buffers that go through shared memory."""
    indices = range(len(buffers))
    if rule.mode == SHARED_MEMORY:
        return set(indices)
    if rule.large_in_pipe and (
        rule.mode == PIPE or _compute_inline_bytes(buffers, (), pickle_bytes) < rule.threshold_bytes
    ):
        return set()
    shared = {index for index in indices if buffers[index].nbytes >= rule.threshold_bytes}
    if _compute_inline_bytes(buffers, shared, 0) >= rule.threshold_bytes:
        return set(indices)
    for index in sorted(set(indices) - shared, key=lambda index: -buffers[index].nbytes):
        if _compute_inline_bytes(buffers, shared, pickle_bytes) <= MAX_INLINE_BYTES:
            break
        shared.add(index)
    return shared


def _compute_inline_bytes(
    buffers: Sequence[PayloadBuffer], shared_indices: Sequence[int] | set[int], pickle_bytes: int
) -> int:
    return pickle_bytes + sum(buffer.nbytes for index, buffer in enumerate(buffers) if index not in shared_indices)


def _estimate_cost_ns(
    buffers: Sequence[PayloadBuffer],
    shared_indices: set[int],
    curves: CostCurves,
    pickle_bytes: int,
    *,
    is_pickle_shared: bool,
) -> int:
    """The cost of carrying an item whose buffers `shared_indices`, and maybe its pickle, go through shared memory."""
    copied_bytes = sum(buffers[index].nbytes for index in shared_indices if not buffers[index].is_in_arena)
    if is_pickle_shared:
        copied_bytes += pickle_bytes
    arena_sizes_bytes = [buffers[index].nbytes for index in shared_indices if buffers[index].is_in_arena]
    inline_bytes = _compute_inline_bytes(buffers, shared_indices, 0 if is_pickle_shared else pickle_bytes)
    inline_count = len(buffers) - len(shared_indices)
    extra_inline_ns, extra_shared_ns = curves.extra_buffer_ns
    cost_ns = 0
    if copied_bytes:
        cost_ns = curves.copied(copied_bytes) + extra_shared_ns * (len(shared_indices) - 1)
    elif arena_sizes_bytes:
        cost_ns = curves.passed_on(max(arena_sizes_bytes)) + extra_shared_ns * (len(shared_indices) - 1)
    if not cost_ns:
        return curves.pipe(inline_bytes) + extra_inline_ns * max(inline_count - 1, 0)
    return cost_ns + curves.pipe(inline_bytes) - curves.pipe(0) + extra_inline_ns * inline_count


def _describe_payload(buffers: Sequence[PayloadBuffer], pickle_bytes: int) -> str:
    total = format_bytes(sum(buffer.nbytes for buffer in buffers))
    if not buffers:
        return f"{format_bytes(pickle_bytes)} of pickle"
    if len(buffers) == 1:
        return f"{buffers[0].name or 'one buffer'}, {total}"
    largest = max(buffers, key=lambda buffer: buffer.nbytes)
    suffix = f" (largest: {largest.name})" if largest.name else ""
    return f"{len(buffers)} buffers{suffix}, {total}"
