"""`tune`: measures a pipeline, applies what its report offers, and keeps what pays. In the caller's process.

One discarded warm-up. Then, for each change: a run with the best layout so far, whose report offers the change, and
pairs of runs without and with it, until `decisions.judge_pairs` has an answer. If several changes stay, the layout at
the end is compared with the one at the start, and has to be at least as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from stagepipe.api import Pipeline, has_part_sinks
from stagepipe.config import load
from stagepipe.core import ConfigError, RunError, UsageError
from stagepipe.spec import PipelineSpec
from stagepipe.tuning.decisions import (
    MIN_PAIRS,
    Judgement,
    PairOfRuns,
    RatioInterval,
    Tuner,
    TuneStep,
    chain_ratios,
    compute_rate,
    estimate_ratio,
)
from stagepipe.tuning.measuring import LayoutRunner, TimedRun, WarmUp
from stagepipe.tuning.sandbox import OutputSandbox

if TYPE_CHECKING:
    from stagepipe.report import LiveRun, Report

_MAX_STEPS: Final = 16
"""Changes that are tried at most. On the planted bottlenecks of docs/verdicts.md three to six end it."""

_MIN_ITEMS: Final = 8

_SLOW_FACTOR: Final = 2.5
_SLOW_EXTRA_S: Final = 1.0
"""A run with a change is stopped when it takes longer than this many times the run before, and this much more."""

_HANG_FACTOR: Final = 10.0
_HANG_EXTRA_S: Final = 60.0
"""The same for a run with the best layout: it has been measured before, so it hangs."""

_START_S: Final = 1.0
"""What a run takes besides its time, for the first estimate of whether there is time for another."""

_MIN_FAST_RUN_S: Final = 1.0
"""How long a run of the faster layout takes at least when the end is compared with the start."""

EndReason = Literal["nothing left", "time", "steps", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """How to tune. `items` of the source for each run; None: so many that a run takes some seconds.

    `time_s` bounds all of it. `allow_writes` runs sinks that are not built in. `interruptible` opens a block in which a
    signal may raise KeyboardInterrupt.
    """

    items: int | None = None
    time_s: float = 300.0
    allow_writes: bool = False
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext


class TuneObserver(Protocol):
    """Is told how tuning goes on. `show_progress` is called by another thread."""

    def begin_run(self, text: str) -> None:
        """Take note that a run begins."""

    def show_progress(self, progress: LiveRun) -> None:
        """Take note of the progress of the run."""

    def end_step(self, step: TuneStep) -> None:
        """Take note of what came of a change."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What tuning found: the overrides to add, and how they were found. Rates are source items per second.

    `overrides` are those that were kept, without the user's own. `total` compares the end with the start, in runs of
    both or, if there was no time for these, over the steps; None if nothing was kept. `verdict` says what limits the
    pipeline at the end, and `interrupt` is the KeyboardInterrupt that ended it.
    """

    steps: tuple[TuneStep, ...]
    overrides: tuple[str, ...]
    start_items_per_s: float | None
    end_items_per_s: float | None
    total: RatioInterval | None
    end_reason: EndReason
    verdict: str = ""
    interrupt: BaseException | None = None


class _NoTimeLeftError(Exception):
    """The time of the user does not suffice for another run."""


def tune(
    config: str | Path | Mapping[str, Any] | object,
    overrides: Sequence[str],
    options: TuneOptions,
    observer: TuneObserver,
) -> TuneResult:
    """Tune a pipeline on the local engine. What it writes goes to temporary folders, which are removed.

    Raises ConfigError and UsageError as `stagepipe run` does, UsageError for a sink of the user's own without
    `allow_writes`, and RunError if a run with the layout of the config fails. An interrupt ends it early: the result
    has the best layout so far.
    """
    spec = load(config, overrides)
    if spec.engine.kind != "local":
        raise UsageError(f"engine: {spec.engine.kind}: tune runs the pipeline on this machine; add engine=local")
    with OutputSandbox(spec, allow_writes=options.allow_writes) as sandbox:
        return _Session(config, overrides, options, observer, sandbox).run(spec)


class _Session:
    def __init__(
        self,
        config: object,
        overrides: Sequence[str],
        options: TuneOptions,
        observer: TuneObserver,
        sandbox: OutputSandbox,
    ) -> None:
        self._config = config
        self._overrides = tuple(overrides)
        self._options = options
        self._observer = observer
        self._sandbox = sandbox
        self._runner = LayoutRunner(sandbox, options.interruptible, observer.show_progress)
        self._tuner = Tuner(max_steps=_MAX_STEPS)
        self._pinned: tuple[str, ...] = ()
        self._deadline_s = monotonic() + options.time_s
        self._overhead_s = _START_S
        self._last_run_s = 0.0
        self._warm_up = WarmUp(items_per_s=1.0, run_s=1.0, items_total=None)
        self._best: TimedRun | None = None
        self._start_rate: float | None = None
        self._end_rate: float | None = None
        self._total: RatioInterval | None = None
        self._told_steps = 0

    def run(self, spec: PipelineSpec) -> TuneResult:
        end_reason: EndReason = "nothing left"
        interrupt: BaseException | None = None
        try:
            self._prepare(spec)
            try:
                self._search()
                end_reason = "steps" if self._tuner.is_at_limit else end_reason
            except _NoTimeLeftError:
                end_reason = "time"
            self._compare_with_start()
        except _NoTimeLeftError:
            end_reason = "time"
        except KeyboardInterrupt as error:
            end_reason = "interrupted"
            interrupt = error
        return self._make_result(end_reason, interrupt)

    def _make_result(self, end_reason: EndReason, interrupt: BaseException | None) -> TuneResult:
        tuner = self._tuner
        self._drop_change_under_way("interrupted" if interrupt else "no time left")
        verdict = None if self._best is None else self._best.report.verdict
        return TuneResult(
            steps=tuple(tuner.steps),
            overrides=tuple(each for each in tuner.overrides if each not in self._overrides)
            if tuner.kept_steps
            else (),
            start_items_per_s=self._start_rate,
            end_items_per_s=self._end_rate if tuner.kept_steps else self._start_rate,
            total=self._total
            or chain_ratios([each.interval for each in tuner.steps if each.is_kept and each.interval]),
            end_reason=end_reason,
            verdict="" if verdict is None else " ".join(filter(None, (verdict.sentence, verdict.advice))),
            interrupt=interrupt,
        )

    # ------------------------------------------------------------------ the search

    def _prepare(self, spec: PipelineSpec) -> None:
        """Resolve `auto`, so that it does not choose another layout in each run, and warm up."""
        self._observer.begin_run("warm-up")
        with self._options.interruptible():
            self._pinned = tuple(list_auto_settings(spec, self._resolve_auto(spec)))
        self._tuner = Tuner((*self._overrides, *self._pinned), max_steps=_MAX_STEPS)
        self._warm_up = self._runner.warm_up(self._load(self._tuner.overrides), self._options.items)

    def _resolve_auto(self, spec: PipelineSpec) -> PipelineSpec:
        pipeline: Pipeline[object] = Pipeline(self._sandbox.redirect(spec))
        if has_part_sinks(spec):
            pipeline.feed_sinks()
        return pipeline.resolve_auto()

    def _search(self) -> None:
        items = self._choose_items(self._warm_up.items_per_s)
        while True:
            best = self._run_best(items, "measuring the best layout so far")
            change = self._tuner.propose(list_offers(best.report))
            if change is None:
                return
            after_s = self._measure_change(" ".join(change), best, items)
            self._tell_steps()
            if after_s is not None:
                items = self._choose_items(best.items / after_s)

    def _measure_change(self, text: str, first: TimedRun, items: int | None) -> float | None:
        """Measure the change under way. Return the time of a run if it stays, else None."""
        tuner = self._tuner
        try:
            spec = self._load(tuner.with_change())
        except ConfigError as error:
            tuner.refuse(f"not valid: {error.problems[0].message}")
            return None
        after: list[float] = []
        for number in range(2 * MIN_PAIRS + 1):
            before_s = first.seconds
            label = f"{text}: pair {number + 1}"
            try:
                if number == 0:
                    run = self._run_change(spec, items, label, before_s)
                elif number % 2:
                    run = self._run_change(spec, items, label, before_s)
                    before_s = self._run_best(items, label).seconds
                else:
                    before_s = self._run_best(items, label).seconds
                    run = self._run_change(spec, items, label, before_s)
            except RunError as error:
                tuner.refuse(f"failed: {str(error).splitlines()[0]}")
                return None
            if not run.has_ended:
                tuner.refuse(f"stopped after {run.seconds:.0f} s: less than {1 / _SLOW_FACTOR:.1f} of the rate before")
                return None
            after.append(run.seconds)
            judgement = tuner.add_pair(PairOfRuns(before_s, run.seconds), items=first.items)
            if judgement is Judgement.KEEP:
                self._best = run
                self._end_rate = tuner.steps[-1].after_items_per_s
                return sum(after) / len(after)
            if judgement is Judgement.DROP:
                return None
        raise AssertionError("judge_pairs ends after MAX_PAIRS")  # pragma: no cover

    def _compare_with_start(self) -> None:
        """Compare the layout at the end with the one at the start, if several steps lie between them."""
        tuner = self._tuner
        if tuner.kept_steps <= 1:  # the pairs of that step have compared them
            return
        self._drop_change_under_way()
        items = self._limit_items(self._choose_comparison_items())
        start, end = self._load(tuner.start_overrides), self._load(tuner.overrides)
        pairs: list[PairOfRuns] = []
        for number in range(MIN_PAIRS):
            label = f"start and end: pair {number + 1}"
            specs = (start, end) if number % 2 == 0 else (end, start)
            runs = [self._run_timed(spec, items, label, self._get_hang_limit_s(), is_search=False) for spec in specs]
            first, second = (run.seconds for run in runs)
            pairs.append(PairOfRuns(first, second) if number % 2 == 0 else PairOfRuns(second, first))
            count = runs[0].items
        self._total = estimate_ratio(pairs)
        self._start_rate = compute_rate([pair.before_s for pair in pairs], count)
        self._end_rate = compute_rate([pair.after_s for pair in pairs], count)
        if self._total.ratio < 1:
            tuner.undo_all_but_first(f"undone: with all changes {self._total} of the start")
            self._total = None
            self._end_rate = next((step.after_items_per_s for step in tuner.steps if step.is_kept), self._start_rate)

    def _choose_comparison_items(self) -> float:
        """So many that the slower layout runs as long as usual, and the faster one long enough."""
        start_rate, end_rate = self._start_rate or 1.0, self._end_rate or 1.0
        return max(end_rate * _MIN_FAST_RUN_S, start_rate * self._warm_up.run_s)

    def _estimate_comparison_s(self) -> float:
        """What comparing the end with the start would take, if one more change stays."""
        if not self._tuner.kept_steps or self._start_rate is None or self._end_rate is None:
            return 0.0
        pair_s = self._choose_comparison_items() * (1 / self._start_rate + 1 / self._end_rate)
        return MIN_PAIRS * (pair_s + 2 * self._overhead_s)

    # ------------------------------------------------------------------ runs

    def _load(self, overrides: Sequence[str]) -> PipelineSpec:
        return load(self._config, overrides)

    def _run_best(self, items: int | None, label: str) -> TimedRun:
        best = self._run_timed(self._load(self._tuner.overrides), items, label, self._get_hang_limit_s())
        if not best.has_ended:
            raise RunError(f"a run on {best.items} items did not end within {best.seconds:.0f} s, but one before did")
        self._best = best
        if self._start_rate is None:
            self._start_rate = best.items / best.seconds
        return best

    def _run_change(self, spec: PipelineSpec, items: int | None, label: str, before_s: float) -> TimedRun:
        return self._run_timed(spec, items, label, _SLOW_FACTOR * before_s + _SLOW_EXTRA_S)

    def _get_hang_limit_s(self) -> float:
        return _HANG_FACTOR * self._warm_up.run_s + _HANG_EXTRA_S

    def _run_timed(
        self, spec: PipelineSpec, items: int | None, label: str, limit_s: float, *, is_search: bool = True
    ) -> TimedRun:
        """Run, if there is time for it. Raises _NoTimeLeftError."""
        started_s = monotonic()
        expected_s = self._overhead_s + self._last_run_s
        if started_s + expected_s > self._deadline_s - (self._estimate_comparison_s() if is_search else 0.0):
            raise _NoTimeLeftError
        self._observer.begin_run(label)
        run = self._runner.run(spec, items, min(limit_s, self._deadline_s - started_s + self._warm_up.run_s))
        self._last_run_s = run.seconds
        self._overhead_s = max(monotonic() - started_s - run.seconds, 0.0)
        return run

    def _choose_items(self, items_per_s: float) -> int | None:
        """Choose how many items a run takes; None: all."""
        return self._options.items or self._limit_items(items_per_s * self._warm_up.run_s)

    def _limit_items(self, items: float) -> int | None:
        total = self._warm_up.items_total
        count = max(math.ceil(items), _MIN_ITEMS)
        return None if total is not None and count >= total else count

    def _drop_change_under_way(self, note: str = "no time left") -> None:
        if self._tuner.is_measuring:
            self._tuner.refuse(note)
        self._tell_steps()

    def _tell_steps(self) -> None:
        """Tell the observer of the steps that it does not know yet."""
        for step in self._tuner.steps[self._told_steps :]:
            self._observer.end_step(step)
        self._told_steps = len(self._tuner.steps)


def list_offers(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield the changes that a report offers: the fix of its verdict, then the other estimates, the best first."""
    if report.verdict.fix:
        yield tuple(report.verdict.fix.split(" "))
    for estimate in sorted(report.what_if, key=lambda row: -row.gain):
        if estimate.overrides and not estimate.ineligible_reason and estimate.gain > 0:
            yield estimate.overrides


def list_auto_settings(spec: PipelineSpec, resolved: PipelineSpec) -> Iterator[str]:
    """Yield what `auto` became, as overrides."""
    pairs = zip((spec.source, *spec.stages), (resolved.source, *resolved.stages), strict=True)
    for stage, chosen in pairs:
        path = stage.config_path
        if "auto" not in (stage.workers, stage.fuse):
            continue
        if chosen.fuse is True:
            yield from (f"{path}.fuse=true", f"{path}.workers=null", f"{path}.threads=null")
        else:
            if stage.fuse == "auto":
                yield f"{path}.fuse=false"
            yield f"{path}.workers={chosen.workers}"
    for number, (sink, chosen_sink) in enumerate(zip(spec.sinks, resolved.sinks, strict=True)):
        if sink.workers == "auto":
            path = "sink" if len(spec.sinks) == 1 else f"sink.{number}"
            yield f"{path}.workers={chosen_sink.workers}"
