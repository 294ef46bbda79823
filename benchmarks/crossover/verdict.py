"""The table of `auto` against the others at every size, and the targets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.common.figures import Estimate, estimate, quotient
from benchmarks.common.targets import Target
from benchmarks.crossover.rounds import CONTESTANTS, MODES, Row

AUTO = "stagepipe auto"
FIXED_MODES = tuple(name for name in MODES if name != AUTO)
PEERS = tuple(name for name in CONTESTANTS if name not in MODES)
MAX_RATIO = 1.1
"""The largest allowed ratio of `auto` to the better contestant. An interval above it is a miss, one on both sides of it
is undecided."""


@dataclass(frozen=True)
class Line:
    """A size: microseconds per transfer, and `auto` against the better fixed mode and the better peer.

    `us` has the median of the repetitions for each contestant. The medians decide which one is better, and the ratios
    are theirs.
    """

    d: int
    us: dict[str, Estimate]
    own: str
    to_own: Estimate
    peer: str
    to_peer: Estimate


def lines(rows: Sequence[Row], *, steady: bool = False) -> list[Line]:
    """Return a line for each size at which all contestants were measured; `steady` excludes the request."""
    size_lines = []
    for d in sorted({row.d for row in rows}):
        values_by_contestant = {row.contestant: row.steady_us if steady else row.us for row in rows if row.d == d}
        if len(values_by_contestant) == len(CONTESTANTS):
            us = {name: estimate(values) for name, values in values_by_contestant.items()}
            own, peer = (min(names, key=lambda name: us[name].value) for names in (FIXED_MODES, PEERS))
            to_own, to_peer = (quotient(us[AUTO], us[name]) for name in (own, peer))
            size_lines.append(Line(d, us, own, to_own, peer, to_peer))
    return size_lines


def table(size_lines: Sequence[Line]) -> Iterator[str]:
    """Format the microseconds per transfer and the two ratios with their intervals, in at most 120 columns."""
    names = "".join(f"{_short_name(name):>9}" for name in CONTESTANTS)
    yield f"{'d':>5}{'bytes':>10}{names}  {'auto / better mode':<26}auto / better peer"
    for line in size_lines:
        us = "".join(f"{line.us[name].value:9.1f}" for name in CONTESTANTS)
        own = f"{line.to_own.text()} {_short_name(line.own)}"
        yield f"{line.d:5}{4 * line.d**2:10,}{us}  {own:<26}{line.to_peer.text()} {line.peer}"


def _short_name(name: str) -> str:
    return name.removeprefix("stagepipe ").removesuffix("_memory")


def targets(size_lines: Sequence[Line], sizes: int) -> Iterator[Target]:
    """Judge both targets. `met` is None where that is undecided, or not all `sizes` were measured."""
    complete = len(size_lines) == sizes and sizes > 0
    yield _target(
        "`auto` is as fast as the better of its two modes",
        {line.d: line.to_own for line in size_lines},
        complete=complete,
    )
    yield _target(
        "`auto` is never slower than Pipe or RawArray", {line.d: line.to_peer for line in size_lines}, complete=complete
    )


def _target(text: str, ratios: dict[int, Estimate], *, complete: bool) -> Target:
    text = f"{text} (at every d, the whole interval of the ratio lies at {MAX_RATIO} or below)"
    if not ratios:
        return Target(text)
    missed = {d: estimate for d, estimate in ratios.items() if estimate.low > MAX_RATIO}
    undecided = {d: estimate for d, estimate in ratios.items() if estimate.low <= MAX_RATIO < estimate.high}
    if missed or undecided:
        parts = [
            f"{word} at {_listed(found)}" for word, found in (("missed", missed), ("undecided", undecided)) if found
        ]
        return Target(text, "; ".join(parts), False if missed else None)
    worst = max(ratios, key=lambda d: ratios[d].high)
    return Target(text, f"the largest ratio is {ratios[worst].text()} at d = {worst}", True if complete else None)


def _listed(ratios: dict[int, Estimate]) -> str:
    return ", ".join(f"d = {d} ({estimate.text()})" for d, estimate in ratios.items())
