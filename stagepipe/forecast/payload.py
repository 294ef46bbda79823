"""The typical item of a hop: its pieces, and the mode and cost that the negotiator decides for each.

Pure; runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from stagepipe.costs import CostCurves, PayloadBuffer, TransferDecision, decide_transfer
from stagepipe.forecast.model import PieceForecast
from stagepipe.plan import HopPlan, ItemSample, PieceSample, ProbeResult

_MIN_LISTED_PICKLED_BYTES = 256
"""Smaller pieces inside the pickle are not listed, unless they are arrays."""


@dataclass(frozen=True)
class HopPayload:
    """The typical item of a hop: its pieces, the largest first, and the decision for the whole item."""

    pieces: tuple[PieceForecast, ...]
    pickle_bytes: int
    decision: TransferDecision


def estimate_payload(hop: HopPlan, probe_result: ProbeResult, curves: CostCurves) -> HopPayload | None:
    """Estimate the payload of a hop from the items that its probe sent; None if there were none."""
    if not probe_result.items:
        return None
    rule = hop.rule
    pickle_bytes = round(fmean(item.pickle_bytes for item in probe_result.items))
    samples_by_name = _group_by_name(probe_result.items)
    buffers = {
        name: _make_typical_buffer(name, samples)
        for name, samples in samples_by_name.items()
        if not samples[0].is_pickled
    }
    decision = decide_transfer(list(buffers.values()), rule, curves, pickle_bytes=pickle_bytes)
    modes = dict(zip(buffers, decision.modes, strict=True))
    pieces = []
    for name, samples in samples_by_name.items():
        is_listed = not samples[0].is_pickled or samples[0].shape
        if not is_listed and _make_typical_buffer(name, samples).nbytes < _MIN_LISTED_PICKLED_BYTES:
            continue
        standalone = decide_transfer([buffers[name]], rule, curves, pickle_bytes=0) if name in buffers else None
        pieces.append(_make_piece(name, samples, modes.get(name, "pickle"), standalone))
    pieces.sort(key=lambda piece: -piece.mean_bytes)
    return HopPayload(tuple(pieces), pickle_bytes, decision)


def _group_by_name(items: Sequence[ItemSample]) -> dict[str, list[PieceSample]]:
    """The pieces of all items, grouped by name."""
    samples_by_name: dict[str, list[PieceSample]] = {}
    for item in items:
        for name, piece in _number_duplicates(item.pieces):
            samples_by_name.setdefault(name, []).append(piece)
    return samples_by_name


def _number_duplicates(pieces: Sequence[PieceSample]) -> Iterator[tuple[str, PieceSample]]:
    """Number the pieces of an item that have the same name: `image`, `image 2`."""
    counts: dict[str, int] = {}
    for piece in pieces:
        number = counts[piece.name] = counts.get(piece.name, 0) + 1
        yield piece.name if number == 1 else f"{piece.name} {number}", piece


def _make_typical_buffer(name: str, pieces: Sequence[PieceSample]) -> PayloadBuffer:
    """A buffer of the mean size. It is in an arena if most of the samples are."""
    is_in_arena = sum(piece.is_in_arena for piece in pieces) * 2 > len(pieces)
    return PayloadBuffer(round(fmean(piece.nbytes for piece in pieces)), is_in_arena, name)


def _make_piece(
    name: str, pieces: Sequence[PieceSample], mode: str, standalone_decision: TransferDecision | None
) -> PieceForecast:
    """A piece. `standalone_decision`: for an item that holds nothing else; None for a piece inside the pickle."""
    typical = _make_typical_buffer(name, pieces)
    sizes = [piece.nbytes for piece in pieces]
    return PieceForecast(
        name=name,
        mean_bytes=typical.nbytes,
        min_bytes=min(sizes),
        max_bytes=max(sizes),
        dtype=pieces[0].dtype,
        shape=pieces[0].shape if len({piece.shape for piece in pieces}) == 1 else (),
        is_in_arena=typical.is_in_arena,
        mode=mode,
        pipe_ns=standalone_decision.pipe_ns if standalone_decision else 0,
        shared_memory_ns=standalone_decision.shared_memory_ns if standalone_decision else 0,
    )
