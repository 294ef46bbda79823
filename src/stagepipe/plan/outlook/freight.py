"""What a hop's typical item is made of, and how the negotiator carries each piece. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from stagepipe.plan.curves import Curves
from stagepipe.plan.model import HopPlan
from stagepipe.plan.negotiator import PIPE, SHARED, Choice, Decision, Part, decide
from stagepipe.plan.outlook.glimpse import Glimpse, ItemSeen, PieceSeen
from stagepipe.transport import FITS_BYTES

_WORTH_NAMING = 256
"""Bytes from which a piece inside the pickle that is no array is worth a line."""


@dataclass(frozen=True)
class Piece:
    """A piece of the items seen, by its path; `nbytes` is the mean.

    `mode` is `pickle` for what has no buffer of its own; for the others `alone` is the decision if there were no more.
    """

    name: str
    nbytes: int
    least_bytes: int
    most_bytes: int
    dtype: str
    shape: tuple[int, ...]  # () where it differs
    in_arena: bool
    mode: str
    alone: Decision | None = None


@dataclass(frozen=True)
class Freight:
    """A hop's typical item: its pieces, and what is decided of it as a whole."""

    pieces: tuple[Piece, ...]
    pickle_bytes: int
    pickle_mode: str
    decision: Decision


def freight_of(hop: HopPlan, seen: Glimpse, curves: Curves) -> Freight | None:
    """What a hop carries by what was `seen` on it; None where that was nothing."""
    if not seen.items:
        return None
    choice = hop.choice
    pickle_bytes = round(fmean(item.pickle_bytes for item in seen.items))
    by_name = _by_name(seen.items)
    buffers = {name: _part(name, each) for name, each in by_name.items() if not each[0].in_pickle}
    parts = list(buffers.values())
    decision = decide(parts, choice, curves, pickle_bytes=pickle_bytes)
    modes = dict(zip(buffers, decision.modes, strict=True))
    pieces = []
    for name, each in by_name.items():
        if each[0].in_pickle and not each[0].shape and _part(name, each).nbytes < _WORTH_NAMING:
            continue
        alone = decide([buffers[name]], choice, curves, pickle_bytes=0) if name in buffers else None
        pieces.append(_piece(name, each, modes.get(name, "pickle"), alone))
    return Freight(tuple(pieces), pickle_bytes, _pickle_mode(parts, decision.modes, choice, pickle_bytes), decision)


def _by_name(items: Sequence[ItemSeen]) -> dict[str, list[PieceSeen]]:
    """The pieces of the items that were seen, those of one name together."""
    found: dict[str, list[PieceSeen]] = {}
    for item in items:
        for name, piece in _numbered(item.buffers):
            found.setdefault(name, []).append(piece)
    return found


def _numbered(pieces: Sequence[PieceSeen]) -> Iterator[tuple[str, PieceSeen]]:
    """Several of one name in an item get numbers."""
    met: dict[str, int] = {}
    for piece in pieces:
        number = met[piece.name] = met.get(piece.name, 0) + 1
        yield piece.name if number == 1 else f"{piece.name} {number}", piece


def _part(name: str, pieces: Sequence[PieceSeen]) -> Part:
    """The typical one of a name."""
    in_arena = sum(piece.in_arena for piece in pieces) * 2 > len(pieces)
    return Part(round(fmean(piece.nbytes for piece in pieces)), in_arena, name)


def _piece(name: str, pieces: Sequence[PieceSeen], mode: str, alone: Decision | None) -> Piece:
    typical, sizes = _part(name, pieces), [piece.nbytes for piece in pieces]
    return Piece(
        name=name,
        nbytes=typical.nbytes,
        least_bytes=min(sizes),
        most_bytes=max(sizes),
        dtype=pieces[0].dtype,
        shape=pieces[0].shape if len({piece.shape for piece in pieces}) == 1 else (),
        in_arena=typical.in_arena,
        mode=mode,
        alone=alone,
    )


def _pickle_mode(parts: Sequence[Part], modes: Sequence[str], choice: Choice, pickle_bytes: int) -> str:
    """Where the pickle goes: into a block if that is forced, or if it does not fit the packet."""
    whole = pickle_bytes + sum(part.nbytes for part in parts)
    inline = pickle_bytes + sum(part.nbytes for part, mode in zip(parts, modes, strict=True) if mode == PIPE)
    in_pieces = choice.large_in_pipe and whole < choice.threshold_bytes
    return SHARED if choice.mode == SHARED or (inline > FITS_BYTES and not in_pieces) else PIPE
