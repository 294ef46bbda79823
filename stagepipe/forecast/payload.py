"""The typical item of a hop: its pieces, the mode and cost of each, and how many items share a packet.

A probe sends one item at a time, so it cannot measure hops that carry several items in a packet: small items of quick
stages, and the chunks of a dataset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from stagepipe.costs import CostCurves, PayloadBuffer, TransferDecision, decide_transfer
from stagepipe.forecast.cost_values import HopCost, PipelineCosts
from stagepipe.forecast.model import PieceForecast
from stagepipe.plan import HopPlan, ItemSample, PieceSample, Plan, ProbeResult

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
    """A piece. `standalone_decision` is for an item with only this piece; None for a piece inside the pickle."""
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


_PACKET_BYTES = 4096
_ENTRY_HEADER_BYTES = 48
_MIN_BLOCK_ITEM_BYTES = 1341
_BLOCK_BYTES = 32 << 10
"""Larger items that fit a packet share a block of this size and the packet of the block: `transport/chunk.py`."""
_MAX_OWN_WORK_NS = 10_000_000
"""Maximum work of the sender in a message, transport included: `MessageLimit` in `runtime/worker/upkeep.py`."""
_TRANSPORT_NS = 5_000
_MAX_READER_WORK_NS = 200_000
"""Maximum work of the reader in a message."""
_ENTRY_COST_FRACTION = 0.5
"""The cost of an item in a shared packet, as a share of a separate packet. Measured with small dicts."""
_CHUNK_NS = 1_000_000
"""The work of the dataset in a chunk, which also has at most `_MAX_CHUNK_ITEMS`."""
_MAX_CHUNK_ITEMS = 384
_MAX_CHUNK_BYTES = 1 << 20


def share_packets(
    costs: PipelineCosts,
    payloads: Sequence[HopPayload | None],
    items_by_hop: Sequence[float],
    pipes_only: Collection[int] = (),
) -> PipelineCosts:
    """Reduce the costs for small items that share packets.

    `items_by_hop`: messages per source item in the probe. `pipes_only`: the hops whose mode is forced to be a pipe.
    """
    hops = []
    for index, (hop, payload, items) in enumerate(zip(costs.hops, payloads, items_by_hop, strict=True)):
        entries = _count_entries(costs, index, payload, items, uses_blocks=index not in pipes_only)
        carrying_ns = payload.decision.cost_ns * items if payload else 0.0
        saved_ns = carrying_ns * (1 - _ENTRY_COST_FRACTION) * (1 - 1 / entries)
        hops.append(HopCost(max(hop.send_ns - saved_ns / 2, 0.0), max(hop.receive_ns - saved_ns / 2, 0.0)))
    return costs.with_hops(tuple(hops))


def _count_entries(
    costs: PipelineCosts, index: int, payload: HopPayload | None, items: float, *, uses_blocks: bool
) -> int:
    """The number of items that share a packet of a hop when its reader lags behind."""
    if payload is None or items <= 0 or "memory" in payload.decision.pickle_mode or not _is_in_pipe(payload):
        return 1
    reader_ns = costs.processes[index + 1].run_ns if index + 1 < len(costs.processes) else costs.sink_ns
    own_ns = costs.processes[index].run_ns / items + _TRANSPORT_NS
    item_bytes = _count_bytes(payload) + _ENTRY_HEADER_BYTES
    has_block = _MIN_BLOCK_ITEM_BYTES <= item_bytes <= _PACKET_BYTES and uses_blocks
    fitting = (_BLOCK_BYTES if has_block else _PACKET_BYTES) // item_bytes
    return int(max(min(fitting, _MAX_OWN_WORK_NS / own_ns, _MAX_READER_WORK_NS * items / max(reader_ns, 1.0)), 1))


def _is_in_pipe(payload: HopPayload) -> bool:
    return all(mode == "pipe" for mode in payload.decision.modes)


def _count_bytes(payload: HopPayload) -> int:
    pieces = sum(piece.mean_bytes for piece in payload.pieces if piece.mode != "pickle")
    return payload.pickle_bytes + pieces


def spread_over_chunks(plan: Plan, costs: PipelineCosts, payloads: Sequence[HopPayload | None]) -> PipelineCosts:
    """Reduce the costs if the source, the readers and `Batch` exchange chunks: one message for many items.

    The samples are copied into a chunk, and from there into the batch.
    """
    payload = payloads[1] if len(plan.processes) > 1 and plan.processes[1].sends_chunks else None
    if payload is None:
        return costs
    dataset = costs.processes[1]
    row_bytes = max(_count_bytes(payload), 1)
    items = min(_CHUNK_NS / (dataset.run_ns + dataset.call_ns + 1), _MAX_CHUNK_ITEMS, _MAX_CHUNK_BYTES / row_bytes)
    if items < 2:  # noqa: PLR2004 - a chunk of one
        return costs
    copy_ns = plan.curves.copied(items * row_bytes) / items
    index_hop = HopCost(*(side / items for side in (costs.hops[0].send_ns, costs.hops[0].receive_ns)))
    costs = costs.with_hops((index_hop, HopCost(copy_ns, costs.hops[1].receive_ns / items), *costs.hops[2:]))
    source, dataset, batch, *others = costs.processes
    quick_batch = replace(
        batch, run_ns=min(batch.run_ns / items + copy_ns, batch.run_ns), call_ns=batch.call_ns / items
    )
    saved_ns = batch.run_ns - quick_batch.run_ns + batch.call_ns - quick_batch.call_ns
    quick_batch = replace(quick_batch, cpu_ns=max(batch.cpu_ns - saved_ns, quick_batch.run_ns))
    processes = [
        replace(process, loop_ns=process.loop_ns / items, cpu_ns=process.cpu_ns - process.loop_ns * (1 - 1 / items))
        for process in (source, dataset, quick_batch)
    ]
    return replace(costs, processes=(*processes, *others))
