"""Runs a layout of a pipeline and takes its time. In the process of `stagepipe tune`, which starts the workers.

The time of a run begins when all workers have built their stages and ends when the last item is in the sink: it
includes the fill and the drain of the pipeline, not its start-up. `RunReport.items_per_s` is no measure here: it begins
at the first delivery, which for a sink that writes one part is the end of the run. Start-up does not count because it
is paid once in a job of hours, and because it would hide a gain in runs of seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from stagepipe.api import Pipeline, open_shards, run_to_sink
from stagepipe.engine import EpochCancelledError
from stagepipe.spec import PipelineSpec
from stagepipe.tuning.sandbox import OutputSandbox

if TYPE_CHECKING:
    from stagepipe.report import LiveRun, Report

TARGET_RUN_S: Final = 4.0
"""A run takes about so long, with the best layout: long against the fill and the drain of a pipeline, which take some
of its items, and short enough for eight runs a change."""

_RUNS_OF_FIRST_ITEM: Final = 2
_MAX_RUN_S: Final = 20.0
"""Where the first items take longer, because a stage loads a model for them, a run takes this many times as long, up to
this: the load is not what is measured."""

_MIN_WARM_UP_ITEMS: Final = 8
_MAX_WARM_UP_S: Final = 60.0
"""The warm-up goes on until this many items are through, but no longer than this."""

_PROGRESS_S: Final = 0.2
"""The interval of `run_to_sink` between two calls of `on_progress`: the resolution of the time of the first items."""


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A run: its time, how many items of the source went through, and its report.

    `has_ended` is false if it was stopped at its time limit.
    """

    seconds: float
    items: int
    has_ended: bool
    report: Report


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """What the discarded first run tells: the rate, how long a run should take, and the number of items if it ended."""

    items_per_s: float
    run_s: float
    items_total: int | None


class LayoutRunner:
    """Runs layouts of one pipeline into the sandbox, each in new worker processes."""

    def __init__(
        self,
        sandbox: OutputSandbox,
        interruptible: Callable[[], AbstractContextManager[None]],
        on_progress: Callable[[LiveRun], None],
    ) -> None:
        """`interruptible` opens a block in which a signal may raise KeyboardInterrupt; closing a run is outside."""
        self._sandbox = sandbox
        self._interruptible = interruptible
        self._on_progress = on_progress
        self._runs = 0

    def warm_up(self, spec: PipelineSpec, items: int | None) -> WarmUp:
        """Run for about `TARGET_RUN_S`, or over `items`: caches become warm, and the rate tells the length of a run."""
        run, clock = self._run(spec, items, _is_warm)
        past_first_s = max(run.seconds - clock.first_s, _PROGRESS_S)
        rate = max(run.items - clock.first_items, 1) / past_first_s
        wanted_s = min(max(TARGET_RUN_S, _RUNS_OF_FIRST_ITEM * clock.first_s), _MAX_RUN_S)
        return WarmUp(items_per_s=rate, run_s=wanted_s, items_total=run.items if run.has_ended else None)

    def run(self, spec: PipelineSpec, items: int | None, limit_s: float) -> TimedRun:
        """Run over the first `items` of the source, for `limit_s` at most. Raises RunError if the run fails."""
        return self._run(spec, items, lambda clock: clock.read() > limit_s)[0]

    def _run(
        self, spec: PipelineSpec, items: int | None, is_enough: Callable[[_RunClock], bool]
    ) -> tuple[TimedRun, _RunClock]:
        pipeline: Pipeline[object] = Pipeline(self._sandbox.redirect(spec), limit=items)
        if self._runs:
            pipeline.on_output = _drop_output  # workers print the same in every run: once is enough
        self._runs += 1
        clock = _RunClock(pipeline, self._on_progress, is_enough)
        with open_shards(pipeline) as shards, pipeline, self._interruptible():
            pipeline.wait_until_built()
            clock.start()
            has_ended = True
            try:
                run_to_sink(pipeline, clock.update, shards=shards)
            except EpochCancelledError:
                has_ended = False
            seconds = clock.read()
        self._sandbox.clear()
        report = pipeline.report()
        items_through = report.run.items_in if has_ended else clock.items_done
        return TimedRun(seconds=seconds, items=items_through, has_ended=has_ended, report=report), clock


class _RunClock:
    """The time of a run, which ends early if `is_enough`. Another thread calls `update`."""

    def __init__(
        self,
        pipeline: Pipeline[object],
        on_progress: Callable[[LiveRun], None],
        is_enough: Callable[[_RunClock], bool],
    ) -> None:
        self.items_done = 0
        self.first_s = 0.0
        """The time until the first items were through; 0 until then."""
        self.first_items = 0
        self.is_cancelled = False
        self._pipeline = pipeline
        self._on_progress = on_progress
        self._is_enough = is_enough
        self._started_s = monotonic()

    def start(self) -> None:
        self._started_s = monotonic()

    def read(self) -> float:
        return monotonic() - self._started_s

    def update(self, progress: LiveRun) -> None:
        if self.is_cancelled:
            return
        if progress.items_done and not self.items_done:
            self.first_s = self.read()
            self.first_items = progress.items_done
        self.items_done = progress.items_done
        self._on_progress(progress)
        if progress.state != "ended" and self._is_enough(self):
            self.is_cancelled = True
            self._pipeline.cancel_epoch()


def _is_warm(clock: _RunClock) -> bool:
    """Whether a warm-up has gone on for long enough after its first items, which may have loaded a model."""
    elapsed_s = clock.read()
    has_rate = clock.items_done >= _MIN_WARM_UP_ITEMS and elapsed_s - clock.first_s > TARGET_RUN_S / 2
    return elapsed_s > _MAX_WARM_UP_S or (elapsed_s > TARGET_RUN_S and has_rate)


def _drop_output(*_: object) -> None:
    """Take the place of the callback that forwards what workers print."""
