"""Which transport a hop takes, and why in words. Pure: cost curves in, choice and reason out.

`negotiate` makes a hop's rule from the curves; `decide` applies it to an item's buffers, as the transport does
(`transport.Packer`, and a test holds the two together), and names the figures that decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.curves import Curves
from stagepipe.transport import FITS_BYTES, FORCED_PIPE

PIPE, SHARED = "pipe", "shared_memory"


@dataclass(frozen=True)
class Choice:
    """A hop's rule. What an item would send inline goes to shared memory from `threshold_bytes` on, all together.

    `large_in_pipe`: below it, what does not fit a packet goes through the pipe in pieces.
    """

    mode: str
    threshold_bytes: int
    reason: str
    large_in_pipe: bool = False


@dataclass(frozen=True)
class Part:
    """A buffer of an item: an array's or a tensor's bytes. `in_arena`: it already lies in shared memory."""

    nbytes: int
    in_arena: bool = False
    name: str = ""


@dataclass(frozen=True)
class Decision:
    """How the parts of an item go, in their order, and what carrying it costs: so, and in either fixed mode, in ns."""

    modes: tuple[str, ...]
    cost_ns: int
    pipe_ns: int
    shared_memory_ns: int
    reason: str


def negotiate(mode: str, threshold_bytes: int | None, workers: tuple[int, int], curves: Curves) -> Choice:
    """The rule of a hop between `workers` processes on its two sides; `threshold_bytes` if the config sets it.

    >>> curves = Curves.simple((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
    >>> negotiate("auto", None, (1, 1), curves).threshold_bytes
    2419
    """
    single = workers == (1, 1)
    if mode == PIPE:
        reason = "forced by the config" + ("" if single else "; between several workers, what fits a packet")
        return Choice(PIPE, FORCED_PIPE, reason, large_in_pipe=single)
    if mode == SHARED:
        return Choice(SHARED, 1, "forced by the config")
    if threshold_bytes is not None:
        reason = f"threshold {format_bytes(threshold_bytes)} from the config"
        return Choice("auto", max(threshold_bytes, 1), reason)
    return crossing(curves, single=single)


def crossing(curves: Curves, *, single: bool) -> Choice:
    """The rule of `auto`: the size from which shared memory is cheaper, or what a packet holds if that is less.

    Between single workers an item can go through the pipe in pieces, so that the packet is no bound there.
    """
    cross = curves.crossing_bytes()
    threshold = cross if single else min(cross, FITS_BYTES)
    figures = (
        f"shared memory {format_ns(curves.copied(threshold))}, pipe {format_ns(curves.pipe(threshold))} "
        "measured on this machine"
    )
    return Choice(
        "auto", threshold, f"from {format_bytes(threshold)} up: {figures}", large_in_pipe=cross > FITS_BYTES and single
    )


def decide(parts: Sequence[Part], choice: Choice, curves: Curves, *, pickle_bytes: int = 200) -> Decision:
    """How an item's parts go by a hop's rule, what that costs, and which figures decided.

    `pickle_bytes` is the rest of the item, with its arrays below 3.5 KB. Costs are those of carrying alone.

    >>> curves = Curves.simple((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
    >>> decide([Part(1_200_000, name="image")], Choice("auto", 3584, ""), curves).reason
    'image, 1.2 MB: shared memory 68 us, pipe 2.3 ms'
    """
    goes = _shared(parts, choice, pickle_bytes)
    modes = tuple(SHARED if number in goes else PIPE for number in range(len(parts)))
    pipe_ns = _cost_ns(parts, set(), curves, pickle_bytes, spilled=False)
    shared_ns = _cost_ns(parts, set(range(len(parts))), curves, pickle_bytes, spilled=not parts)
    spilled = not choice.large_in_pipe and _inline_bytes(parts, goes, pickle_bytes) > FITS_BYTES
    cost_ns = _cost_ns(parts, goes, curves, pickle_bytes, spilled=spilled)
    what = _what(parts, pickle_bytes)
    reason = f"{what}: shared memory {format_ns(shared_ns)}, pipe {format_ns(pipe_ns)}"
    if choice.mode != "auto":
        reason += f"; {choice.mode.replace('_', ' ')} is {choice.reason}"
    return Decision(modes, cost_ns, pipe_ns, shared_ns, reason)


def _shared(parts: Sequence[Part], choice: Choice, pickle_bytes: int) -> set[int]:
    """The numbers of the parts that go in shared memory."""
    numbers = range(len(parts))
    if choice.mode == SHARED:
        return set(numbers)
    if choice.large_in_pipe and (
        choice.mode == PIPE or _inline_bytes(parts, (), pickle_bytes) < choice.threshold_bytes
    ):
        return set()
    goes = {n for n in numbers if parts[n].nbytes >= choice.threshold_bytes}
    if _inline_bytes(parts, goes, 0) >= choice.threshold_bytes:
        return set(numbers)
    for n in sorted(set(numbers) - goes, key=lambda n: -parts[n].nbytes):
        if _inline_bytes(parts, goes, pickle_bytes) <= FITS_BYTES:
            break
        goes.add(n)
    return goes


def _inline_bytes(parts: Sequence[Part], goes: Sequence[int] | set[int], pickle_bytes: int) -> int:
    return pickle_bytes + sum(part.nbytes for n, part in enumerate(parts) if n not in goes)


def _cost_ns(parts: Sequence[Part], goes: set[int], curves: Curves, pickle_bytes: int, *, spilled: bool) -> int:
    """What carrying costs if the parts `goes` lie in shared memory; `spilled`: so does the pickle."""
    copied = sum(parts[n].nbytes for n in goes if not parts[n].in_arena) + (pickle_bytes if spilled else 0)
    described = [parts[n].nbytes for n in goes if parts[n].in_arena]
    inline = _inline_bytes(parts, goes, 0 if spilled else pickle_bytes)
    inline_parts = len(parts) - len(goes)
    further_inline_ns, further_shared_ns = curves.further_ns
    cost = 0
    if copied:
        cost = curves.copied(copied)
        cost += further_shared_ns * (len(goes) - 1)
    elif described:
        cost = curves.passed_on(max(described)) + further_shared_ns * (len(goes) - 1)
    if not cost:
        return curves.pipe(inline) + further_inline_ns * max(inline_parts - 1, 0)
    return cost + curves.pipe(inline) - curves.pipe(0) + further_inline_ns * inline_parts


def _what(parts: Sequence[Part], pickle_bytes: int) -> str:
    total = format_bytes(sum(part.nbytes for part in parts))
    if not parts:
        return f"{format_bytes(pickle_bytes)} of pickle"
    if len(parts) == 1:
        return f"{parts[0].name or 'one buffer'}, {total}"
    largest = max(parts, key=lambda part: part.nbytes)
    named = f", {largest.name} the largest" if largest.name else ""
    return f"{len(parts)} buffers{named}, {total}"
