"""`tune`: measures a pipeline, applies the changes that its report offers, and keeps improvements.

It starts with one discarded warm-up. Each change then needs a run with the best layout so far, whose report offers the
change, and pairs of runs without and with it, until `decisions.judge_pairs` decides. If several changes are kept, the
final layout is compared with the initial one, and must be at least as fast.

The time of a run begins when all workers have built their stages and ends when the last item is in the sink. It
includes the fill and the drain of the pipeline, but not its start-up, which a job of hours pays once and which would
hide gains in runs of seconds. `RunReport.items_per_s` is not suitable: it begins at the first delivery, which is at the
end of the run for a sink that writes one part.

A run writes to the folders of its sinks (shards, journals), to `cache` folders, and to the files of `report`.
`OutputSandbox` redirects sinks and caches to new folders next to the originals, on the same file system, because the
disk's speed is part of the measurement. It turns reports off. Sinks that are not built in may write anywhere, so they
are refused unless the user allows them.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from stagepipe.api import Pipeline, has_part_sinks, open_shards, run_to_sink
from stagepipe.config import load
from stagepipe.core import ConfigError, RunError, UsageError
from stagepipe.engine import EpochCancelledError
from stagepipe.spec import CacheSpec, PipelineSpec, ReportSpec, SinkSpec
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

if TYPE_CHECKING:
    from stagepipe.report import LiveRun, Report

# ------------------------------------------------------------------ the output of runs

_BUILT_IN_SINKS: Final = "stagepipe.sinks"
_PATH: Final = "path"
_PREFIX: Final = ".stagepipe-tune-"
_WATCHER: Final = 'cat > /dev/null; sleep 2; rm -rf -- "$@"'
"""Waits until this process ends, however it ends, and removes the folders 2 s later, because workers may outlive it by
some milliseconds and still write."""


class OutputSandbox:
    """Temporary folders for the output of runs. A context manager that removes them at its end.

    They are also removed if this process is killed.
    """

    def __init__(self, spec: PipelineSpec, *, allow_writes: bool = False) -> None:
        """Find the output folders of the pipeline. Raises UsageError for a sink that may write anywhere.

        With `allow_writes`, such a sink runs, and its output stays.
        """
        own_sinks = [sink for sink in spec.sinks if not _is_built_in(sink)]
        if own_sinks and not allow_writes:
            names = ", ".join(f"`{sink.target.label}`" for sink in own_sinks)
            raise UsageError(
                f"sink {names}: tune runs the pipeline many times, and the output of a sink that is not built in "
                "remains; allow it with --allow-writes, or tune without it: sink=null"
            )
        self._anchors = {path: _find_anchor(path) for path in _iter_outputs(spec)}
        self._folders: dict[Path, Path] = {}
        self._runs = 0
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Make the folders."""
        try:
            for anchor in dict.fromkeys(self._anchors.values()):
                self._folders[anchor] = _make_folder(anchor)
            if self._folders:
                self._watcher = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCHER, "sh", *self._folders.values()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
                )
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folders."""
        self._close()

    def redirect(self, spec: PipelineSpec) -> PipelineSpec:
        """Return the spec of a run that writes to new, empty folders. Deletes the output of earlier runs."""
        self.clear()
        self._runs += 1
        sinks = tuple(self._redirect_sink(sink) for sink in spec.sinks)
        stages = tuple(replace(stage, cache=self._redirect_cache(stage.cache)) for stage in spec.stages)
        source = replace(spec.source, cache=self._redirect_cache(spec.source.cache))
        return replace(spec, source=source, sinks=sinks, stages=stages, report=ReportSpec())

    def clear(self) -> None:
        """Delete the output of all runs so far."""
        for folder in self._folders.values():
            for path in folder.iterdir():
                shutil.rmtree(path, ignore_errors=True)

    def _redirect_sink(self, sink: SinkSpec) -> SinkSpec:
        folder = _get_folder(sink)
        if folder is None:
            return sink
        return replace(
            sink, target=replace(sink.target, arguments={**sink.target.arguments, _PATH: self._place(folder)})
        )

    def _redirect_cache(self, cache: CacheSpec | None) -> CacheSpec | None:
        return cache and replace(cache, path=self._place(Path(cache.path).expanduser()))

    def _place(self, path: Path) -> str:
        """Return the folder that replaces `path` in this run."""
        number = list(self._anchors).index(path)
        return str(self._folders[self._anchors[path]] / f"run-{self._runs}-{number}")

    def _close(self) -> None:
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        if self._watcher is not None:
            self._watcher.kill()  # its own session has no children but `cat`, which ends with its pipe
            with contextlib.suppress(OSError):
                self._watcher.communicate()
            self._watcher = None


def _is_built_in(sink: SinkSpec) -> bool:
    uses = sink.target.uses
    module = uses.replace(":", ".") if isinstance(uses, str) else getattr(uses, "__module__", "")
    return f"{module}.".startswith(f"{_BUILT_IN_SINKS}.")


def _get_folder(sink: SinkSpec) -> Path | None:
    """Return a sink's folder: the `path` of a built-in sink, or of a custom `PartSink`, whose contract requires it."""
    path = sink.target.arguments.get(_PATH)
    return Path(path) if path is not None and (_is_built_in(sink) or sink.writes_parts) else None


def _iter_outputs(spec: PipelineSpec) -> Iterator[Path]:
    yield from filter(None, map(_get_folder, spec.sinks))
    yield from (Path(stage.cache.path).expanduser() for stage in (spec.source, *spec.stages) if stage.cache)


def _find_anchor(path: Path) -> Path:
    """Return the folder that will contain the temporary folder for `path`: next to it, on the same file system.

    The parent of a mount point is on another file system, so for a mount point it is the folder itself.
    """
    path = path.resolve()
    if not path.exists():
        return next(parent for parent in path.parents if parent.exists())
    return path.parent if path.parent.stat().st_dev == path.stat().st_dev else path


def _make_folder(anchor: Path) -> Path:
    """Make a new folder. Raises UsageError if the permissions do not allow it."""
    try:
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=anchor))
    except OSError as error:
        raise UsageError(
            f"tune writes to a temporary folder next to the sink or cache, and cannot create one in {anchor}: "
            f"{os.strerror(error.errno or 0)}; tune with another path: sink.with.path=..."
        ) from None


# ------------------------------------------------------------------ a run and its time

TARGET_RUN_S: Final = 4.0
"""Target duration of a run with the best layout: long compared with the fill and drain of a pipeline, and short enough
for eight runs per change."""

_RUNS_OF_FIRST_ITEM: Final = 2
_MAX_RUN_S: Final = 20.0
"""A run takes at least this many times the duration of its first items, up to the maximum. A stage may load a model for
the first items, and loading is not measured."""

_MIN_WARM_UP_ITEMS: Final = 8
_MAX_WARM_UP_S: Final = 60.0
"""The warm-up runs until this many items are through, but not longer than this."""

_PROGRESS_S: Final = 0.2
"""The interval between two `on_progress` calls of `run_to_sink`, and so the resolution of the first items' time."""


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A run: its duration, the source items that went through, and its report.

    `has_ended` is false if the run was stopped at its time limit.
    """

    seconds: float
    items: int
    has_ended: bool
    report: Report


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Results of the warm-up: the rate, the suitable duration of a run, and the number of items if it ended."""

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
        """`interruptible` opens a block in which a signal may raise KeyboardInterrupt. Runs close outside of it."""
        self._sandbox = sandbox
        self._interruptible = interruptible
        self._on_progress = on_progress
        self._runs = 0

    def warm_up(self, spec: PipelineSpec, items: int | None) -> WarmUp:
        """Run for about `TARGET_RUN_S`, or over `items`. This warms caches, and its rate determines a run's length."""
        run, clock = self._run(spec, items, _is_warm)
        past_first_s = max(run.seconds - clock.first_s, _PROGRESS_S)
        rate = max(run.items - clock.first_items, 1) / past_first_s
        wanted_s = min(max(TARGET_RUN_S, _RUNS_OF_FIRST_ITEM * clock.first_s), _MAX_RUN_S)
        return WarmUp(items_per_s=rate, run_s=wanted_s, items_total=run.items if run.has_ended else None)

    def run(self, spec: PipelineSpec, items: int | None, limit_s: float) -> TimedRun:
        """Run over the first `items` of the source for at most `limit_s`. Raises RunError if the run fails."""
        return self._run(spec, items, lambda clock: clock.read() > limit_s)[0]

    def _run(
        self, spec: PipelineSpec, items: int | None, is_enough: Callable[[_RunClock], bool]
    ) -> tuple[TimedRun, _RunClock]:
        pipeline: Pipeline[object] = Pipeline(self._sandbox.redirect(spec), limit=items)
        if self._runs:
            pipeline.on_output = _drop_output  # workers print the same text in every run
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
    """The time of a run. Ends it early if `is_enough` says so. Another thread calls `update`."""

    def __init__(
        self,
        pipeline: Pipeline[object],
        on_progress: Callable[[LiveRun], None],
        is_enough: Callable[[_RunClock], bool],
    ) -> None:
        self.items_done = 0
        self.first_s = 0.0
        """The time until the first items were through; 0 before."""
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
    """Return whether a warm-up has run long enough after its first items, which may have loaded a model."""
    elapsed_s = clock.read()
    has_rate = clock.items_done >= _MIN_WARM_UP_ITEMS and elapsed_s - clock.first_s > TARGET_RUN_S / 2
    return elapsed_s > _MAX_WARM_UP_S or (elapsed_s > TARGET_RUN_S and has_rate)


def _drop_output(*_: object) -> None:
    """Ignore the workers' output."""


# ------------------------------------------------------------------ the search

_MAX_STEPS: Final = 16
"""Maximum number of changes to try. The planted bottlenecks of docs/verdicts.md need three to six."""

_MIN_ITEMS: Final = 8

_SLOW_FACTOR: Final = 2.5
_SLOW_EXTRA_S: Final = 1.0
"""A run with a change is stopped after this many times the time of the run before, plus this time."""

_HANG_FACTOR: Final = 10.0
_HANG_EXTRA_S: Final = 60.0
"""The same for a run with the best layout, relative to the usual time. It ran before, so it must be hanging now."""

_START_S: Final = 1.0
"""First estimate of the time that a run takes in addition to its measured time."""

_MIN_FAST_RUN_S: Final = 1.0
"""Minimum duration of the faster layout's runs in the comparison of the final with the initial layout."""

EndReason = Literal["nothing left", "time", "steps", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of tuning. `items` is the number of source items per run; None chooses runs of some seconds.

    `time_s` limits the whole tuning. `allow_writes` runs sinks that are not built in. `interruptible` opens a block in
    which a signal may raise KeyboardInterrupt.
    """

    items: int | None = None
    time_s: float = 300.0
    allow_writes: bool = False
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext


class TuneObserver(Protocol):
    """Receives the progress of tuning. Another thread calls `show_progress`."""

    def begin_run(self, text: str) -> None:
        """Take note that a run begins."""

    def show_progress(self, progress: LiveRun) -> None:
        """Take note of the progress of the run."""

    def end_step(self, step: TuneStep) -> None:
        """Take note of the result of a change."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The result of tuning: the overrides to add, and the steps. Rates are source items per second.

    `overrides` are the kept ones, without the user's own. `total` compares the final with the initial layout, in runs
    of both, or over the steps if there was no time for these; None if nothing was kept. `verdict` says what limits the
    pipeline at the end. `interrupt` is the KeyboardInterrupt that ended tuning.
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
    """The remaining time is too short for another run."""


def tune(
    config: str | Path | Mapping[str, Any] | object,
    overrides: Sequence[str],
    options: TuneOptions,
    observer: TuneObserver,
) -> TuneResult:
    """Tune a pipeline on the local engine. Its output goes to temporary folders, which are removed.

    Raises ConfigError and UsageError as `stagepipe run` does, UsageError for a custom sink without `allow_writes`, and
    RunError if a run with the layout of the config fails. An interrupt ends tuning early: the result has the best
    layout so far.
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
        """Resolve `auto`, so that all runs use the same choice, and warm up."""
        self._observer.begin_run("warm-up")
        with self._options.interruptible():
            pipeline: Pipeline[object] = Pipeline(self._sandbox.redirect(spec))
            if has_part_sinks(spec):
                pipeline.feed_sinks()
            pinned = list_auto_settings(spec, pipeline.resolve_auto())
        self._tuner = Tuner((*self._overrides, *pinned), max_steps=_MAX_STEPS)
        self._warm_up = self._runner.warm_up(self._load(self._tuner.overrides), self._options.items)

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
        """Measure the current change. Return the mean time of its runs if it is kept, or None."""
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
                if number and number % 2 == 0:
                    before_s = self._run_best(items, label).seconds
                run = self._run_timed(spec, items, label, _SLOW_FACTOR * before_s + _SLOW_EXTRA_S)
                if number % 2:
                    before_s = self._run_best(items, label).seconds
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
        """Compare the final layout with the initial one, if several steps lie between them."""
        tuner = self._tuner
        if tuner.kept_steps <= 1:  # the pairs of that step have compared the two
            return
        self._drop_change_under_way()
        items = self._limit_items(self._choose_comparison_items())
        start, end = self._load(tuner.start_overrides), self._load(tuner.overrides)
        pairs: list[PairOfRuns] = []
        for number in range(MIN_PAIRS):
            label = f"start and end: pair {number + 1}"
            runs = {
                index: self._run_timed((start, end)[index], items, label, self._get_hang_limit_s(), is_search=False)
                for index in ((1, 0) if number % 2 else (0, 1))
            }
            pairs.append(PairOfRuns(runs[0].seconds, runs[1].seconds))
            count = runs[0].items
        self._total = estimate_ratio(pairs)
        self._start_rate = compute_rate([pair.before_s for pair in pairs], count)
        self._end_rate = compute_rate([pair.after_s for pair in pairs], count)
        if self._total.ratio < 1:
            tuner.undo_all_but_first(f"undone: with all changes {self._total} of the start")
            self._total = None
            self._end_rate = next((step.after_items_per_s for step in tuner.steps if step.is_kept), self._start_rate)

    def _choose_comparison_items(self) -> float:
        """Return the items that make the slower layout run as long as usual, and the faster one long enough."""
        start_rate, end_rate = self._start_rate or 1.0, self._end_rate or 1.0
        return max(end_rate * _MIN_FAST_RUN_S, start_rate * self._warm_up.run_s)

    def _estimate_comparison_s(self) -> float:
        """Return the time to compare the final layout with the initial one, if one more change is kept."""
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

    def _get_hang_limit_s(self) -> float:
        return _HANG_FACTOR * self._warm_up.run_s + _HANG_EXTRA_S

    def _run_timed(
        self, spec: PipelineSpec, items: int | None, label: str, limit_s: float, *, is_search: bool = True
    ) -> TimedRun:
        """Run, if there is time for it. Raises _NoTimeLeftError otherwise."""
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
        """Choose the number of items for a run; None for all."""
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
        """Tell the observer about new steps."""
        for step in self._tuner.steps[self._told_steps :]:
            self._observer.end_step(step)
        self._told_steps = len(self._tuner.steps)


def list_offers(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield the changes that a report offers: the fix of its verdict, then the other estimates, best first."""
    if report.verdict.fix:
        yield tuple(report.verdict.fix.split(" "))
    for estimate in sorted(report.what_if, key=lambda row: -row.gain):
        if estimate.overrides and not estimate.ineligible_reason and estimate.gain > 0:
            yield estimate.overrides


def list_auto_settings(spec: PipelineSpec, resolved: PipelineSpec) -> Iterator[str]:
    """Yield the choices for `auto` settings, as overrides."""
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
