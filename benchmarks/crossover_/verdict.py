"""The table of `auto` against the others at every size, and the targets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from crossover_.pipelines import MODES
from crossover_.rounds import CONTESTANTS, Row
from side_by_side.figures import Estimate, ratio
from side_by_side.targets import Target

AUTO = "stagepipe auto"
OWN = tuple(name for name in MODES if name != AUTO)
PEERS = tuple(name for name in CONTESTANTS if name not in MODES)
ALLOWED = 1.1
"""How many times the better one's time `auto` may take: the interval of the ratio must not lie above it."""


@dataclass(frozen=True)
class Line:
    """A size: microseconds a transfer of each contestant, and `auto` against the better of its modes and of the peers.

    Which one is the better is by the medians; the ratio is pair by pair, repetition by repetition.
    """

    d: int
    us: dict[str, float]
    own: str
    to_own: Estimate
    peer: str
    to_peer: Estimate


def lines(rows: Sequence[Row], *, steady: bool = False) -> list[Line]:
    """A line for each size of which all contestants were measured; `steady`: without the request."""
    found = []
    for d in sorted({row.d for row in rows}):
        here = {row.contestant: row.steady_us if steady else row.us for row in rows if row.d == d}
        if len(here) == len(CONTESTANTS):
            us = {name: median(values) for name, values in here.items()}
            own, peer = min(OWN, key=us.__getitem__), min(PEERS, key=us.__getitem__)
            found.append(Line(d, us, own, ratio(here[AUTO], here[own]), peer, ratio(here[AUTO], here[peer])))
    return found


def table(found: Sequence[Line]) -> Iterator[str]:
    """Microseconds a transfer, and the two ratios with their intervals; 120 columns hold it."""
    head = "".join(f"{_short(name):>9}" for name in CONTESTANTS)
    yield f"{'d':>5}{'bytes':>10}{head}  {'auto / better mode':<26}auto / better peer"
    for line in found:
        us = "".join(f"{line.us[name]:9.1f}" for name in CONTESTANTS)
        own = f"{line.to_own.text()} {_short(line.own)}"
        yield f"{line.d:5}{4 * line.d**2:10,}{us}  {own:<26}{line.to_peer.text()} {line.peer}"


def _short(name: str) -> str:
    return name.removeprefix("stagepipe ").removesuffix("_memory")


def targets(found: Sequence[Line], sizes: int) -> Iterator[Target]:
    """Both promises; None where not all `sizes` were measured with all contestants."""
    whole = len(found) == sizes and sizes > 0
    yield _target("`auto` takes what the better of its two modes takes", {f.d: f.to_own for f in found}, whole=whole)
    yield _target("`auto` is never slower than Pipe or RawArray", {f.d: f.to_peer for f in found}, whole=whole)


def _target(text: str, ratios: dict[int, Estimate], *, whole: bool) -> Target:
    text = f"{text} (at every d {ALLOWED} lies in the interval of the ratio or above it)"
    if not ratios:
        return Target(text, "not measured in this run", None)
    missed = {d: each for d, each in ratios.items() if each.low > ALLOWED}
    worst = max(ratios, key=lambda d: ratios[d].low)
    measured = f"the largest is {ratios[worst].text()} at d = {worst}"
    if missed:
        measured = "; ".join(f"d = {d}: {each.text()}" for d, each in missed.items())
    return Target(text, measured, not missed if whole or missed else None)
