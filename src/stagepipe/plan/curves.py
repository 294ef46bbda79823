"""What a hop costs on this machine, by size: straight lines between measured points. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

_QUARTILES = 3
_BETWEEN = 400
"""Points between the smallest and the largest size at which two curves are compared."""


@dataclass(frozen=True)
class Curve:
    """The cost in ns of a message that carries one buffer of `sizes` bytes, both sides added.

    `low_ns` and `high_ns` are the quartiles of what was measured, `ns` the median, made not to fall with the size.

    >>> curve = Curve.through((1000, 3000), (10, 30))
    >>> curve(2000), curve(5000)
    (20, 50)
    """

    sizes: tuple[int, ...]
    ns: tuple[int, ...]
    low_ns: tuple[int, ...]
    high_ns: tuple[int, ...]

    @classmethod
    def through(cls, sizes: Sequence[int], ns: Sequence[int]) -> Curve:
        """The curve through points without a spread."""
        return cls(tuple(sizes), tuple(ns), tuple(ns), tuple(ns))

    @classmethod
    def fitted(cls, sizes: Sequence[int], measured: Sequence[Sequence[int]]) -> Curve:
        """The curve through the medians of what was `measured` in ns at each of `sizes`."""
        low, middle, high = (
            np.maximum(_rising([float(np.quantile(each, share)) for each in measured]), 1)
            for share in (0.25, 0.5, 0.75)
        )
        return cls(tuple(sizes), *(tuple(int(value) for value in each) for each in (middle, low, high)))

    def __call__(self, nbytes: float) -> int:
        """The cost of `nbytes`, in ns; beyond the last point the last line goes on."""
        return int(self.at(np.array([nbytes]))[0])

    def at(self, nbytes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The same for many sizes at once."""
        slope = (self.ns[-1] - self.ns[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond = np.maximum(nbytes - self.sizes[-1], 0) * max(slope, 0)
        costs: np.ndarray[Any, Any] = np.interp(nbytes, self.sizes, self.ns) + beyond
        return costs

    @property
    def spread(self) -> float:
        """How far the quartiles lie apart, as a share of the median; the median over the points."""
        return float(
            np.median([(high - low) / ns for low, ns, high in zip(self.low_ns, self.ns, self.high_ns, strict=True)])
        )


@dataclass(frozen=True)
class Curves:
    """What carrying a message costs in each way: copy, send and receive. Its pickling costs the same in all.

    copied       through a block whose pages were used before; `cold`: through one that nobody has touched yet
    loaned       built in a block by the stage itself
    passed_on    received in a block and sent on
    further_ns   what each buffer after an item's first costs: (in the pipe, in a block)

    `timing_ns_per_hop` is what its timing costs, `when` an ISO date.
    """

    pipe: Curve
    copied: Curve
    cold: Curve
    loaned: Curve
    passed_on: Curve
    further_ns: tuple[int, int] = (0, 0)
    timing_ns_per_hop: int = 0
    when: str = ""

    @classmethod
    def simple(cls, sizes: Sequence[int], pipe_ns: Sequence[int], copied_ns: Sequence[int], flat_ns: int = 1) -> Curves:
        """Two curves, and a flat one for what is not copied.

        >>> Curves.simple((1000, 2000, 3000), (10, 20, 30), (15, 16, 17)).crossing_bytes()
        1557
        """
        flat = Curve.through(sizes, [flat_ns] * len(sizes))
        copied = Curve.through(sizes, copied_ns)
        return cls(Curve.through(sizes, pipe_ns), copied, copied, flat, flat)

    def crossing_bytes(self) -> int:
        """From how many bytes on shared memory is cheaper, for good."""
        return crossing_bytes(self.pipe, self.copied)

    @property
    def spread(self) -> float:
        """How far the quartiles lie apart, as a share of the median: of the two curves that decide, the worse."""
        return max(self.pipe.spread, self.copied.spread)

    def to_plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        curves = {
            name: {part.name: list(getattr(curve, part.name)) for part in fields(curve)}
            for name, curve in self._named()
        }
        rest = {"further_ns": list(self.further_ns), "timing_ns_per_hop": self.timing_ns_per_hop, "when": self.when}
        return {**curves, **rest}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Curves:
        """What `to_plain` gave; KeyError, TypeError or ValueError if it is not that."""
        curves = {part.name: _curve(plain[part.name]) for part in fields(cls) if part.type == "Curve"}
        inline_ns, shared_ns = (int(value) for value in plain["further_ns"])
        timing_ns, when = int(plain["timing_ns_per_hop"]), str(plain["when"])
        return cls(**curves, further_ns=(inline_ns, shared_ns), timing_ns_per_hop=timing_ns, when=when)

    def _named(self) -> list[tuple[str, Curve]]:
        return [(part.name, getattr(self, part.name)) for part in fields(self) if part.type == "Curve"]


def crossing_bytes(pipe: Curve, other: Curve) -> int:
    """From how many bytes on `other` is cheaper than `pipe`, for good; the larger end if it never is."""
    ends = (pipe.sizes[0], max(pipe.sizes[-1], other.sizes[-1]))
    sizes = np.unique(np.concatenate((np.geomspace(*ends, _BETWEEN).astype(np.int64), pipe.sizes, other.sizes)))
    dearer = np.flatnonzero(pipe.at(sizes) < other.at(sizes))
    return int(sizes[min(dearer[-1] + 1, len(sizes) - 1)] if len(dearer) else sizes[0])


def _curve(plain: Mapping[str, Any]) -> Curve:
    rows = [tuple(int(value) for value in plain[part.name]) for part in fields(Curve)]
    sizes, costs = rows[0], rows[1]
    rising = all(a < b for a, b in itertools.pairwise(sizes))
    if len({len(row) for row in rows}) != 1 or len(sizes) < 2 or not rising or min(costs) < 1:  # noqa: PLR2004
        message = "not a curve: sizes that rise, and as many costs above 0"
        raise ValueError(message)
    return Curve(*rows)


def _rising(values: list[float]) -> list[float]:
    """The nearest values that do not fall: pool adjacent violators (Barlow et al., 1972)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, weight = pools.pop()
            mean, count = (mean * count + other * weight) / (count + weight), count + weight
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
