"""The cost of a message on this machine, by size: straight lines between measured points.

Pure. The plan carries the curves; the caller's process and its supervisor thread evaluate them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

_CROSSOVER_SAMPLES = 400
"""Sizes, from the smallest to the largest, at which two curves are compared."""


_MAX_VALUE = 1 << 53
"""The largest size and cost, in bytes and ns: the integers up to it are exact as floats."""


@dataclass(frozen=True)
class CostCurve:
    """The cost in ns of a message with one buffer of `sizes` bytes, both sides added.

    `ns` holds the medians, `low_ns` and `high_ns` the quartiles. None of them falls as the size grows.

    >>> curve = CostCurve.from_points((1000, 3000), (10, 30))
    >>> curve(2000), curve(5000)
    (20, 50)
    """

    sizes: tuple[int, ...]
    ns: tuple[int, ...]
    low_ns: tuple[int, ...]
    high_ns: tuple[int, ...]

    @classmethod
    def from_points(cls, sizes: Sequence[int], ns: Sequence[int]) -> CostCurve:
        """A curve through exact points: the quartiles equal the medians."""
        return cls(tuple(sizes), tuple(ns), tuple(ns), tuple(ns))

    @classmethod
    def fit(cls, sizes: Sequence[int], samples_ns: Sequence[Sequence[int]]) -> CostCurve:
        """A curve through the medians of `samples_ns`, which holds the measurements at each of `sizes`."""
        low, middle, high = (
            np.maximum(_fit_isotonic([float(np.quantile(samples, quantile)) for samples in samples_ns]), 1)
            for quantile in (0.25, 0.5, 0.75)
        )
        return cls(tuple(sizes), *(tuple(int(value) for value in costs) for costs in (middle, low, high)))

    def __call__(self, nbytes: float) -> int:
        """The cost of `nbytes` in ns. Beyond the last point, the last line continues."""
        return int(self.evaluate_ns(np.array([nbytes]))[0])

    def evaluate_ns(self, nbytes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The costs of many sizes at once, in ns."""
        slope = (self.ns[-1] - self.ns[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond = np.maximum(nbytes - self.sizes[-1], 0) * max(slope, 0)
        costs: np.ndarray[Any, Any] = np.interp(nbytes, self.sizes, self.ns) + beyond
        return costs

    @property
    def relative_iqr(self) -> float:
        """The interquartile range as a share of the median; the median over all points."""
        return float(
            np.median([(high - low) / ns for low, ns, high in zip(self.low_ns, self.ns, self.high_ns, strict=True)])
        )


@dataclass(frozen=True, kw_only=True)
class CostCurves:
    """The cost of carrying a message by each transfer kind: copy, send and receive. Pickling costs the same in all.

    pipe               through the pipe
    copied             copied into a block whose pages were used before
    cold               copied into a block whose pages were never touched
    loaned             made in a block by the stage
    passed_on          received in a block and sent on
    extra_buffer_ns    each buffer after an item's first: (in the pipe, in a block)
    timing_ns_per_hop  the cost of the timing itself
    measured_at        an ISO 8601 date
    """

    pipe: CostCurve
    copied: CostCurve
    cold: CostCurve
    loaned: CostCurve
    passed_on: CostCurve
    extra_buffer_ns: tuple[int, int] = (0, 0)
    timing_ns_per_hop: int = 0
    measured_at: str = ""

    @classmethod
    def from_points(
        cls, sizes: Sequence[int], pipe_ns: Sequence[int], copied_ns: Sequence[int], uncopied_ns: int = 1
    ) -> CostCurves:
        """Curves through exact points: one for the pipe, one for copies, and a flat one for what is not copied.

        >>> CostCurves.from_points((1000, 2000, 3000), (10, 20, 30), (15, 16, 17)).find_crossover_bytes()
        1557
        """
        flat = CostCurve.from_points(sizes, [uncopied_ns] * len(sizes))
        copied = CostCurve.from_points(sizes, copied_ns)
        pipe = CostCurve.from_points(sizes, pipe_ns)
        return cls(pipe=pipe, copied=copied, cold=copied, loaned=flat, passed_on=flat)

    def find_crossover_bytes(self) -> int:
        """The size from which shared memory is cheaper than the pipe at every larger size."""
        return find_crossover_bytes(self.pipe, self.copied)

    @property
    def relative_iqr(self) -> float:
        """The larger `relative_iqr` of the two curves that decide: `pipe` and `copied`."""
        return max(self.pipe.relative_iqr, self.copied.relative_iqr)

    def to_dict(self) -> dict[str, Any]:
        """The curves as values that JSON can hold."""
        curves = {
            name: {field.name: list(getattr(curve, field.name)) for field in fields(curve)}
            for name, curve in self._iter_named_curves()
        }
        scalars = {
            "extra_buffer_ns": list(self.extra_buffer_ns),
            "timing_ns_per_hop": self.timing_ns_per_hop,
            "measured_at": self.measured_at,
        }
        return {**curves, **scalars}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CostCurves:
        """Make the curves from what `to_dict` returned. Raises KeyError, TypeError or ValueError for other data."""
        curves = {field.name: _parse_curve(data[field.name]) for field in fields(cls) if field.type == "CostCurve"}
        inline_ns, shared_ns, timing_ns = (
            int(value) for value in (*data["extra_buffer_ns"], data["timing_ns_per_hop"])
        )
        if not all(0 <= value <= _MAX_VALUE for value in (inline_ns, shared_ns, timing_ns)):
            message = "not cost curves: a cost is below 0 or too large"
            raise ValueError(message)
        return cls(
            **curves,
            extra_buffer_ns=(inline_ns, shared_ns),
            timing_ns_per_hop=timing_ns,
            measured_at=str(data["measured_at"]),
        )

    def _iter_named_curves(self) -> list[tuple[str, CostCurve]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self) if field.type == "CostCurve"]


def find_crossover_bytes(pipe: CostCurve, other: CostCurve) -> int:
    """The size from which `other` is cheaper than `pipe` at every larger size; the largest size if there is none."""
    ends = (pipe.sizes[0], max(pipe.sizes[-1], other.sizes[-1]))
    sizes = np.unique(
        np.concatenate((np.geomspace(*ends, _CROSSOVER_SAMPLES).astype(np.int64), pipe.sizes, other.sizes))
    )
    pipe_is_cheaper = np.flatnonzero(pipe.evaluate_ns(sizes) < other.evaluate_ns(sizes))
    return int(sizes[min(pipe_is_cheaper[-1] + 1, len(sizes) - 1)] if len(pipe_is_cheaper) else sizes[0])


def _parse_curve(data: Mapping[str, Any]) -> CostCurve:
    rows = [tuple(int(value) for value in data[field.name]) for field in fields(CostCurve)]
    sizes, costs = rows[0], rows[1]
    rising = all(a < b for a, b in itertools.pairwise(sizes))
    is_in_range = all(0 <= value <= _MAX_VALUE for row in rows for value in row) and sizes[:1] > (0,)
    if len({len(row) for row in rows}) != 1 or len(sizes) < 2 or not rising or not is_in_range or min(costs) < 1:  # noqa: PLR2004
        message = "not a cost curve: expected two or more rising sizes, with a cost above 0 for each"
        raise ValueError(message)
    return CostCurve(*rows)


def _fit_isotonic(values: list[float]) -> list[float]:
    """The nearest non-decreasing values, by pooling adjacent violators (Barlow et al., 1972)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            previous_mean, previous_count = pools.pop()
            total = mean * count + previous_mean * previous_count
            count += previous_count
            mean = total / count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


MADE_UP_CURVES: Final = CostCurves.from_points((1, 2), (1, 1), (1, 1))
"""For a plan whose hops carry nothing: it is only checked, or runs inline."""
