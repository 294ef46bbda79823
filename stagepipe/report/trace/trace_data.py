"""What the engine knows of a run that was traced. Times are those of `perf_counter_ns`, durations are in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stagepipe.report.series import Series
from stagepipe.timing import TraceRing

_BASE_PERIOD_NS: Final = 7_889_238 * 10**9
"""A quarter of a year, as in Kineto (ChromeTraceBaseTime): the times of a trace begin at a multiple of it. So this
trace and one of torch.profiler, written in the same quarter, have the same time axis."""


@dataclass(frozen=True)
class ClockReading:
    """One moment on two clocks: `perf_counter_ns` (CLOCK_MONOTONIC) and `time_ns` (the wall clock)."""

    monotonic_ns: int
    wall_ns: int

    @property
    def offset_ns(self) -> int:
        """What the wall clock is ahead."""
        return self.wall_ns - self.monotonic_ns

    @property
    def base_ns(self) -> int:
        """The wall time at which the ticks of a trace begin, in ns since 1970."""
        return self.wall_ns // _BASE_PERIOD_NS * _BASE_PERIOD_NS


@dataclass(frozen=True)
class TraceTrack:
    """A place for a process in the chain: a worker and those that replaced it, or the consumer.

    `group` is the place in the chain: a process of group g sends over hop g and receives from hop g - 1.
    """

    name: str
    group: int
    ring: TraceRing


@dataclass(frozen=True, kw_only=True)
class TraceDeath:
    """A worker that died. `track` is an index of `TraceData.tracks`; `item` is "" if it was at none."""

    track: int
    pid: int
    died_ns: int
    cause: str
    item: str


@dataclass(frozen=True, kw_only=True)
class TraceData:
    """A traced run. `series` has times since `started_ns`; the last of `tracks` is the consumer, process `pid`."""

    name: str
    pid: int
    stage_names: tuple[str, ...]
    tracks: tuple[TraceTrack, ...]
    deaths: tuple[TraceDeath, ...]
    series: Series
    started_ns: int
    first_clock: ClockReading
    last_clock: ClockReading
