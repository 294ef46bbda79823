"""What a hop costs on this machine, by size: straight lines between measured points. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Curves:
    """Cost in ns of a message that carries one buffer of `sizes` bytes, both sides added; `when` is an ISO date."""

    sizes: tuple[int, ...]
    pipe_ns: tuple[int, ...]
    shared_memory_ns: tuple[int, ...]
    timing_ns_per_hop: int = 0
    when: str = ""

    def pipe(self, nbytes: float) -> int:
        """The cost through the pipe."""
        return _interpolate(nbytes, self.sizes, self.pipe_ns)

    def shared_memory(self, nbytes: float) -> int:
        """The cost through shared memory, copied once."""
        return _interpolate(nbytes, self.sizes, self.shared_memory_ns)

    def crossing_bytes(self) -> int:
        """From how many bytes on shared memory is cheaper, for good.

        >>> Curves((1000, 2000, 3000), (10, 20, 30), (15, 16, 17)).crossing_bytes()
        1503
        """
        between = np.geomspace(self.sizes[0], self.sizes[-1], 400).astype(np.int64)
        sizes = np.unique(np.concatenate((between, self.sizes)))
        dearer = np.array([self.pipe(size) < self.shared_memory(size) for size in sizes])
        if not dearer.any():
            return int(sizes[0])
        last = int(np.flatnonzero(dearer)[-1])
        return int(sizes[min(last + 1, len(sizes) - 1)])

    def to_plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "sizes": list(self.sizes),
            "pipe_ns": list(self.pipe_ns),
            "shared_memory_ns": list(self.shared_memory_ns),
            "timing_ns_per_hop": self.timing_ns_per_hop,
            "when": self.when,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Curves:
        """What `to_plain` gave; KeyError, TypeError or ValueError if it is not that."""
        rows = [tuple(int(value) for value in plain[name]) for name in ("sizes", "pipe_ns", "shared_memory_ns")]
        if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2 or sorted(rows[0]) != list(rows[0]):  # noqa: PLR2004
            message = "curves of different lengths"
            raise ValueError(message)
        return cls(rows[0], rows[1], rows[2], int(plain["timing_ns_per_hop"]), str(plain["when"]))


def _interpolate(at: float, sizes: tuple[int, ...], costs: tuple[int, ...]) -> int:
    if at > sizes[-1]:
        slope = (costs[-1] - costs[-2]) / (sizes[-1] - sizes[-2])
        return int(costs[-1] + slope * (at - sizes[-1]))
    return int(np.interp(at, sizes, costs))
