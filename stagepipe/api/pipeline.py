"""`Pipeline`: a pipeline from a config or from Python objects. Runs in the user's process and starts the workers."""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import msgspec

from stagepipe import engine  # imports its modules when they are first used: see `_ensure_started`
from stagepipe.core import (
    MAX_ITEM_NUMBER,
    VERSION,
    UsageError,
    folds_frames_of_methods,
    format_owner_message,
    keep_until_exit,
    make_html_table,
    register_owner,
)
from stagepipe.plan import EvenMode, Shard, SubsetShard
from stagepipe.runtime import OutputCallback, forward_output, launch_fork_server, launch_spare_server
from stagepipe.spec import PipelineSpec

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from stagepipe.core import SkipCount, SourceIdentity
    from stagepipe.costs import CostCurves
    from stagepipe.engine import AutoWorkersResult, EngineRun, LocalRun, Nondeterminism
    from stagepipe.forecast import Forecast
    from stagepipe.plan import Plan
    from stagepipe.report import DeadLetter, LiveRun, Report
    from stagepipe.transport import Lease

    T_co = TypeVarWithDefault("T_co", covariant=True, default=Any)
else:  # a default needs Python 3.13
    T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("stagepipe")

_CLOSED_MESSAGE = "this pipeline is closed; make a new one"


@folds_frames_of_methods
class Pipeline(Generic[T_co]):
    """Run a pipeline in worker processes; use it as a context manager, where each iteration is one epoch.

    >>> def square(number):
    ...     return number * number
    >>> config = {"source": {"uses": range(4)}, "stages": [{"name": "square", "uses": square, "workers": 2}]}
    >>> with Pipeline(config) as pipeline:
    ...     print(list(pipeline))
    [0, 1, 4, 9]
    >>> pipeline.report().run.items_out
    4

    Args:
        config: the path of a YAML file, a mapping of the same form (`uses` may be a function or class), an OmegaConf
            object, a builder (`stagepipe.from_source`), or a loaded spec, which takes no overrides.
        overrides: strings such as `"stages.decode.workers=8"`.
        inline: run all stages in the calling process: for pdb, notebooks, and systems other than Linux.
        limit: the number of source items per epoch.
        rank: this process's part of the source: item i of the epoch goes to rank i % world_size.
        world_size: the number of ranks.
        even: give all ranks the same number of items: `"pad"` repeats the first items, `"drop"` drops the last.
        only: run only these source items (numbers from 0), with their seeds of a full epoch.
        cache: if False, neither read nor write the outputs that stages with a `cache` keep.
        trace: the file for a trace, written when the pipeline is closed; replaces `report.trace` of the config.
        prometheus: an address for metrics, such as `"127.0.0.1:9100"`; replaces `report.prometheus`.

    Items have the shapes and dtypes that the last stage returns, and are writable. Arrays are in shared memory, which
    is reused when their last view is gone.

    Raises ConfigError with all problems of the config, and UsageError for arguments that contradict each other.
    Iterating raises RunError if the run fails.
    """

    def __init__(  # noqa: PLR0913 - one parameter per option
        self,
        config: str | Path | Mapping[str, Any] | object,
        overrides: Sequence[str] = (),
        *,
        inline: bool = False,
        limit: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        even: EvenMode | None = None,
        only: Sequence[int] | None = None,
        cache: bool = True,
        trace: str | Path | None = None,
        prometheus: str | int | None = None,
    ) -> None:
        """Check the config, and start the fork server unless `inline`; workers start later."""
        if not inline and not (isinstance(config, PipelineSpec) and config.forks_caller):
            launch_spare_server()  # it starts while this process reads the config
        self.shard = Shard(rank, world_size, even) if only is None else _make_item_selection(only, world_size)
        self.spec: PipelineSpec = _load_spec(config, overrides)
        self._engine = engine.INLINE if inline else engine.get_engine(self.spec.engine)
        self._capabilities = self._engine.get_capabilities(self.spec.engine.options)
        self._outputs = self._choose_outputs(trace, prometheus)
        self._config_path = _find_shown_path(config)
        self._limit = limit
        self._uses_caches = cache
        self._run: EngineRun | None = None
        self._consumer_name = "consumer"
        self._is_consumer_sink = False
        self._count_written: Callable[[], tuple[int, int]] | None = None
        self._keep_idle_pages = False
        self._feeds_sinks = False
        """Whether sinks with workers run, and records of what they have written are the items."""
        self._saves_state = True
        """Whether `state_dict` may be called. `take` of a builder clears it before the start."""
        self.on_output: OutputCallback = forward_output
        """Receives the lines that workers print and log. `stagepipe run --log-json` sets it before the start."""
        self._auto_workers_result: AutoWorkersResult | None = None
        self._state = engine.PipelineState()
        self._saved_source: SourceIdentity | None = None
        """The source data of the loaded state, until an iteration has compared it."""
        self._saved_skips: SkipCount | None = None
        """The skipped items of the loaded state's job, until an iteration counts on from them."""
        self.earlier_dead_letters: Sequence[DeadLetter] = ()
        """The dead letters of the job before this run, from its journal."""
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._owner_pid = 0

    def make_plan(self) -> Plan:
        """Return the plan of the run; measures this machine's cost curves if needed, and resolves `workers: auto`.

        Raises RunError if a stage fails in the probe for `workers: auto`.

        >>> pipeline = Pipeline({"source": {"uses": range(4)}}, inline=True)
        >>> [process.name for process in pipeline.make_plan().processes]
        ['source']
        """
        return self._plan_spec(self._make_run_spec())

    def feed_sinks(self) -> None:
        """Run the sinks that have workers as stages; items are then the parts that they have written.

        Without this call, a pipeline yields its items and no sink runs. Call it before the start.
        """
        self._feeds_sinks = True

    def _lower_sinks(self, spec: PipelineSpec) -> PipelineSpec:
        from stagepipe.plan import lower_sinks

        return lower_sinks(spec) if self._feeds_sinks else spec

    def _make_run_spec(self) -> PipelineSpec:
        """Return the spec of the run: `workers: auto` is resolved, and sinks with workers are stages."""
        return self._lower_sinks(self._resolve_auto_workers().spec)

    def _plan_spec(self, spec: PipelineSpec, curves: CostCurves | None = None) -> Plan:
        """Plan a run of the spec. Without `curves`, those of this machine, which may have to be measured first."""
        from stagepipe.calibration import load_curves
        from stagepipe.machine import detect_machine
        from stagepipe.plan import make_plan

        return make_plan(
            spec,
            detect_machine(),
            curves or load_curves(VERSION),
            limit=self._limit,
            shard=self.shard,
            keep_idle_pages=self._keep_idle_pages,
            consumer_name=self._consumer_name,
            is_consumer_sink=self._is_consumer_sink,
        )

    def _plan_run(self) -> Plan:
        """Plan the run. One without hops needs no cost curves of this machine, so none are measured."""
        from stagepipe.costs import MADE_UP_CURVES

        plan = self._plan_spec(self._make_run_spec(), None if self._capabilities.has_hops else MADE_UP_CURVES)
        return engine.plan_caches(self.spec, plan) if self._uses_caches else plan

    def _resolve_auto_workers(self) -> AutoWorkersResult:
        """Resolve `workers: auto`, once: a probe starts processes."""
        if self._auto_workers_result is None:
            self._auto_workers_result = engine.resolve_auto_workers(
                self.spec, self._plan_spec, has_hops=self._capabilities.has_hops, feeds_sinks=self._feeds_sinks
            )
        return self._auto_workers_result

    def _measure_auto_workers(self) -> AutoWorkersResult:
        """Resolve `workers: auto` from a probe of this process, not of an earlier one. The run's layout stays."""
        if self._auto_workers_result is None or self._auto_workers_result.is_from_cache:
            return engine.resolve_auto_workers(
                self.spec,
                self._plan_spec,
                has_hops=self._capabilities.has_hops,
                feeds_sinks=True,
                must_measure=True,
            )
        return self._auto_workers_result

    def explain_auto_workers(self) -> tuple[str, ...]:
        """Explain the choices for `workers: auto`, one line per stage; runs a few items through the stages first.

        Raises RunError if a stage fails.

        >>> Pipeline("train.yaml").explain_auto_workers()  # doctest: +SKIP
        ('decode: 2 workers (auto, 1-8): 3.9 ms per item; ...',)
        """
        return self._resolve_auto_workers().auto_workers

    def forecast(self, *, run_sink: bool = False) -> Forecast:
        """Forecast the costs of stages and hops and the effect of changes, as `stagepipe plan` does.

        Runs the stages in separate processes until each has had items, for at most a minute. Sinks with workers and
        built-in sinks write to a temporary folder. Any other sink runs only with `run_sink`, and its output stays.
        Durations are in ns, sizes in bytes. Raises RunError if a stage fails, and ReadOnceError if the source can be
        read only once.

        >>> Pipeline("train.yaml").forecast().advice[0].overrides  # doctest: +SKIP
        ('stages.decode.workers=3',)
        """
        return engine.forecast_pipeline(self._measure_auto_workers(), self._plan_spec, run_sink=run_sink)

    def find_nondeterminism(self) -> Nondeterminism | None:
        """Compare the outputs of the first 8 items in three runs: twice with 1 worker per stage, once with 2.

        Returns the first stage and item whose output differs, or None. The sink does not run. Raises RunError if a
        stage fails, and ReadOnceError if the source can be read only once.

        >>> print(Pipeline("train.yaml").find_nondeterminism())  # doctest: +SKIP
        stage augment, item 0: the output differs from run to run; ...
        """
        return engine.find_nondeterminism(self.spec, self._plan_spec)

    def start(self) -> Self:
        """Start the workers unless they are running; iterating does this too.

        Raises UsageError if the pipeline is closed or a system limit is too low, and RunError if a stage cannot start.
        """
        self._ensure_started()
        return self

    def _ensure_started(self) -> EngineRun:
        if self._state.closed_reason:
            raise UsageError(self._state.closed_reason)
        if self._run is None:
            if self._capabilities.calls_objects and self._saves_state:  # a run may change them
                _ = self._state_description
            if self._capabilities.forks_workers:
                launch_fork_server(self.spec)  # it imports what workers need while this process imports the engine
            plan = self._plan_run()
            if self._saves_state:  # not for a look at the first items
                self._warn_of_unused_outputs()
            self._run = self._engine.start(
                engine.RunRequest(
                    plan=plan, spec=self._make_run_spec(), on_output=self.on_output, outputs=self._outputs
                )
            )
            self._finalizer = weakref.finalize(self, self._run.close_unattended)
            self._owner_pid = os.getpid()
            register_owner(self)
        return self._run

    def _choose_outputs(self, trace: str | Path | None, prometheus: str | int | None) -> engine.RunOutputs:
        """Return where the run shows what it does: as the arguments say, else as the config says."""
        is_refused = not self._capabilities.shows_workers
        for name, value in (("trace", trace), ("prometheus", prometheus)):
            if is_refused and value is not None:
                raise UsageError(f"{name}={str(value)!r}: {self._engine.outputs_refusal}; {self._engine.way_out}")
        if is_refused:
            return engine.RunOutputs()
        from stagepipe.config import check_address, check_trace_path

        report = self.spec.report
        try:
            trace_path = report.trace_path if trace is None else check_trace_path(str(trace))
        except ValueError as error:
            raise UsageError(f"trace={str(trace)!r}: {error}") from None
        try:
            address = report.prometheus if prometheus is None else check_address(prometheus)
        except ValueError as error:
            raise UsageError(f"prometheus={prometheus!r}: {error}") from None
        return engine.RunOutputs(None if trace_path is None else Path(trace_path), address)

    def _warn_of_unused_outputs(self) -> None:
        """Warn of what the config's `report` asks for and the engine cannot give: `html` and `json` any can."""
        if self._capabilities.shows_workers:
            return
        outputs = {"trace": self.spec.report.trace_path, "prometheus": self.spec.report.prometheus}
        for key, value in outputs.items():
            if value is not None:
                _log.warning(
                    "report.%s: not written: it shows worker processes, and %s run has none; %s",
                    key,
                    self._engine.phrase,
                    self._engine.way_out,
                )

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over one epoch, or over the rest of the one that was loaded. Work on it starts now.

        This invalidates earlier iterators: using one raises UsageError. An iterator that was never asked for an item
        does not count as an epoch, so calling `iter` just to test for iterability skips none.

        Raises UsageError if a state was loaded and its data has changed since, and RunError if the job of that state
        has skipped more items than `max_skipped` allows.
        """
        run = self._ensure_started()
        self._check_source(run)
        self._resume_skip_count(run)
        iteration_state = engine.IterationState(run, self._state.next_position)
        self._state.begin_iteration(iteration_state)
        return engine.EpochIterator(iteration_state, self._state, self)

    def _check_source(self, run: EngineRun) -> None:
        """Raise UsageError if the next iteration starts at a position in other data. It waits for the source."""
        if self._saved_source is not None and not self._state.next_position.is_start:
            current = run.wait_for_source()
            if current is None:
                return  # the run has failed, which the iteration reports
            engine.check_source(self._saved_source, current)
        self._saved_source = None

    def _resume_skip_count(self, run: EngineRun) -> None:
        """Let `max_skipped` go on with the count of the loaded state. Raises RunError if that exceeds it already."""
        if self._saved_skips is None:
            return
        # Without a cursor, an epoch is computed again from its start: what failed before the position fails again.
        is_counted_again = not self._capabilities.resumes_in_mid_epoch and self._state.next_position.cursor is not None
        if not is_counted_again:
            run.dead_letters.resume_count(self._saved_skips)
            limit_error = run.dead_letters.make_limit_error()
            if limit_error is not None:
                raise limit_error
        self._saved_skips = None

    def __len__(self) -> int:
        """Return the number of items per epoch. Starts the workers and waits until their stages are built.

        If functions drop items with SKIP, this is an upper bound: they do not announce it. Raises TypeError if the
        length is unknown: after a stream, a generator, a Filter or an Unbatch.
        """
        length = self._ensure_started().get_epoch_length()
        if length is None:
            message = (
                "length unknown: the pipeline contains a stream, a generator, a filter or an order point of any size"
            )
            raise TypeError(message)
        return length

    def _start_local_run(self) -> LocalRun:
        """Start the run and return it, to share its items among several processes. Raises UsageError if it cannot."""
        run = self._ensure_started()
        if not self._capabilities.shares_memory:
            message = f"{self._engine.phrase} pipeline has no memory to share with other processes"
            raise UsageError(f"{message}; {self._engine.way_out}")
        return cast("LocalRun", run)

    def wait_until_built(self) -> None:
        """Start the workers and wait until all have built their stages; the work begins later."""
        self._ensure_started().get_epoch_length()

    def identify_source(self) -> SourceIdentity | None:
        """Return the number of the source's items and its files, or None if the run failed; waits until it is built.

        Used by the parts of stagepipe that run one source in several places.
        """
        return self._ensure_started().wait_for_source()

    def cancel_epoch(self) -> None:
        """End the current epoch from another thread; its iteration raises EpochCancelledError.

        Raises UsageError if the engine is not local.
        """
        self._start_local_run().cancel_epoch()

    def resolve_auto(self) -> PipelineSpec:
        """Return the spec with values for `workers: auto` and `fuse: auto`; may run some items.

        Raises RunError if a stage fails.
        """
        return self._resolve_auto_workers().spec

    @property
    def config_description(self) -> str:
        """The part of the config that determines the items, as JSON; objects from Python appear by name."""
        return json.dumps(engine.describe_config(self.spec, self._limit, self.shard, with_contents=False))

    def _attach_loader(self, *, keep_idle_pages: bool) -> None:
        """Deliver to a `Loader`. `keep_idle_pages`: it pins blocks for a GPU, so they keep their pages when idle."""
        self._consumer_name = "training step"
        self._keep_idle_pages = keep_idle_pages

    def deliver_to_sinks(self, count_written: Callable[[], tuple[int, int]] | None = None) -> None:
        """Name the sinks in the report as the consumer: those that `stagepipe run` calls in this process.

        `count_written` returns the number of items that sinks with workers have written in this run, and of their
        files.
        """
        from stagepipe.plan import name_sink

        sinks = [sink.name or name_sink(sink.target) for sink in self.spec.sinks if not sink.writes_parts]
        self._is_consumer_sink = bool(self.spec.sinks)
        self._consumer_name = ", ".join(sinks) or "sink" if self.spec.sinks else "consumer"
        self._count_written = count_written

    def count_files(self, files: int) -> None:
        """Show the number of files that the sinks have written in the progress."""
        if self._run is not None:
            self._run.count_files(files)

    def _find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the lease on the block that holds these bytes of a yielded item; None if they lie in no block."""
        return None if self._run is None else self._run.find_lease(address, nbytes)

    # ------------------------------------------------------------------ state

    @property
    def epoch(self) -> int:
        """The epoch of `state_dict`: the current one or, between epochs, the next one."""
        return self._state.position().epoch

    @property
    def items_yielded(self) -> int:
        """Number of items that this epoch has yielded, including those before a resume."""
        return self._state.position().items_yielded

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next epoch, from its start or from its loaded position.

        Raises UsageError if `epoch` is not an integer from 0 to 2**32 - 1.
        """
        self._state.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last item that was yielded, regardless of items prepared ahead.

        The dict is flat and contains numbers and strings, so you can pickle it, write it as JSON, or put it in any
        checkpoint. A call takes some microseconds and does not involve the workers. The first call also computes
        fingerprints of objects from Python: about a millisecond, plus a second per GB of arrays in them.

        >>> with Pipeline({"source": {"uses": range(4)}}, inline=True) as pipeline:
        ...     items = iter(pipeline)
        ...     first = next(items)
        ...     state = pipeline.state_dict()
        >>> with Pipeline({"source": {"uses": range(4)}}, inline=True) as resumed:
        ...     resumed.load_state_dict(state)
        ...     first, list(resumed)
        (0, [1, 2, 3])
        """
        position = self._state.position()
        source = self._saved_source
        if source is None and self._run is not None and not position.is_start:
            source = self._run.wait_for_source()
        skipped = self._saved_skips
        if skipped is None and self._run is not None:
            skipped = self._run.dead_letters.count_until(position.epoch, position.cursor)
        return engine.make_state_dict(position, self._state_description, self.shard, source, skipped)

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, allow_changed: bool = False
    ) -> None:
        """Resume from `state`: the next iteration yields the rest of its epoch, later ones whole epochs.

        The number of workers, the transport and the machine may differ. To change the number of ranks, pass the list of
        the states that all ranks saved at the same step: the new ranks share the items that were not yielded. A rank
        that stopped inside a group, such as a shuffled block, or ranks that stopped at different steps raise
        UsageError.

        Raises UsageError, with the differences, if `state` is not a state or was saved with a config that yields
        different items. Functions and objects from Python are compared by fingerprint: code, constants, defaults,
        closure values, attributes. The next iteration raises UsageError if the number of source items, or the names,
        sizes or modification times of its files have changed.

        `allow_changed=True` accepts such differences and objects without a fingerprint. `order`, `even` and the number
        of `Batch` and `Shuffle` stages must still be the same.

        >>> def make_pipeline(factor):
        ...     stages = [{"name": "scale", "uses": lambda number: number * factor}]
        ...     return Pipeline({"source": {"uses": range(4)}, "stages": stages}, inline=True)
        >>> state = make_pipeline(2).state_dict()
        >>> make_pipeline(3).load_state_dict(state)
        Traceback (most recent call last):
        ...
        stagepipe.core.errors.UsageError: this state was saved with a different config; ...
          stages.scale.uses: closure value `factor`: saved 2, now 3
        resume with the config of the saved run, start without the state, or accept it with allow_changed=True ...
        >>> make_pipeline(3).load_state_dict(state, allow_changed=True)
        """
        position = engine.parse_state_dict(
            state,
            self._state_description,
            self.shard,
            order_points=[stage.name for stage in self._lower_sinks(self.spec).stages if stage.is_order_point],
            is_inline=not self._capabilities.resumes_in_mid_epoch,
            allow_changed=allow_changed,
        )
        is_mid_epoch = bool(position.items_yielded)
        if is_mid_epoch and self.spec.order == "any" and not self._capabilities.resumes_in_mid_epoch:
            message = f"{self._engine.phrase} pipeline cannot resume in the middle of an epoch with `order: any`"
            raise UsageError(f"{message}; {self._engine.way_out}")
        self._state.load_position(position)
        self._saved_source = None if allow_changed else engine.find_saved_source(state, self.shard)
        self._saved_skips = engine.find_saved_skips(state, self.shard)

    @cached_property
    def _state_description(self) -> Mapping[str, str]:
        """The part of the config that decides which items come out. Fingerprints may take long: only where needed."""
        return engine.describe_config(self._lower_sinks(self.spec), self._limit, self.shard)

    # ------------------------------------------------------------------ progress and report

    @property
    def started(self) -> bool:
        """Whether the run has started."""
        return self._run is not None

    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the current figures of the run: counts, rates and the limit; starts the run if needed.

        `detailed` adds percentiles of stages and hops and the memory of the workers, for about a millisecond of CPU per
        worker. An engine without workers has none.
        """
        return self._ensure_started().progress(detailed=detailed)

    @property
    def trace_path(self) -> Path | None:
        """The file for the trace, from the argument or the config; None without a trace."""
        return self._outputs.trace_path

    @property
    def written_trace(self) -> Path | None:
        """The file of the trace after the run; None without a trace, or if it could not be written."""
        return self.trace_path if self._run is not None and self._run.has_written_trace else None

    def report(self) -> Report:
        """Return the report so far, or of the whole run once the pipeline is closed.

        Raises UsageError before the start.
        """
        if self._run is None:
            message = f"no report: {self._state.closed_reason or 'the pipeline has not started yet'}"
            raise UsageError(message)
        record = self._run.make_record()
        consumer = msgspec.structs.replace(record.consumer, name=self._consumer_name, is_sink=self._is_consumer_sink)
        if self._count_written is not None:
            items, files = self._count_written()
            consumer = msgspec.structs.replace(consumer, items=items, files=files)
        from stagepipe.report import build_report

        report = build_report(msgspec.structs.replace(record, consumer=consumer))
        return msgspec.structs.replace(report, config_path=self._config_path)

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The items that failed and were skipped so far (`on_error: skip`), including those before a resume."""
        own_letters = () if self._run is None else self._run.dead_letters.to_records()
        if not self.earlier_dead_letters:
            return own_letters
        # After a resume, some items of the group that was under way fail again.
        by_item = {(each.epoch, each.stage, each.item): each for each in (*self.earlier_dead_letters, *own_letters)}
        return tuple(sorted(by_item.values(), key=lambda letter: (letter.epoch, letter.source_items)))

    def take_dead_letters(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters up to the position of `state_dict` that no earlier call returned, for a journal."""
        position = self._state.position()
        return () if self._run is None else self._run.dead_letters.take_until(position.epoch, position.cursor)

    def __repr__(self) -> str:
        from stagepipe.config import summarize_spec

        return f"<Pipeline {self.spec.name}: {summarize_spec(self.spec)}; {self._describe_state()}>"

    def _repr_html_(self) -> str:
        """A small table of the stages, for notebooks."""
        stages = [
            (f"{'+ ' * (stage.fuse is True)}{stage.name}", stage.target.label, stage.format_workers())
            for stage in (self.spec.source, *self.spec.stages)
        ]
        return make_html_table(self.spec.name, ("stage", "runs", "workers"), stages, [self._describe_state()])

    def _describe_state(self) -> str:
        if self._state.closed_reason:
            return "closed"
        return "running" if self.started else "not started"

    # ------------------------------------------------------------------ close

    def close(self) -> None:
        """Stop the workers and release all resources; the report and the state stay available."""
        self._state.close(self._state.closed_reason or _CLOSED_MESSAGE)
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._run is not None:
            self._run.close()

    def abandon_in_child(self) -> None:
        """Leave the workers to the process that started them; called in a forked child."""
        if self._run is not None and self._capabilities.forks_workers:
            self._state.close(format_owner_message("pipeline", self._owner_pid))
            keep_until_exit(self._run)
            self._run = None
            if self._finalizer is not None:
                self._finalizer.detach()

    def __enter__(self) -> Self:
        """Start the pipeline and return it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pipeline. The report shows an exception of the `with` block."""
        if self._run is not None:
            self._run.__exit__(kind, error, trace)
        self.close()


def _load_spec(config: object, overrides: Sequence[str]) -> PipelineSpec:
    if isinstance(config, PipelineSpec):
        return config
    from stagepipe.config import load  # with yaml: not before a config is read

    return load(config, overrides)


def _find_shown_path(config: object) -> str:
    """Return the path of the config for its report: as it was given, unless it is absolute."""
    return str(config) if isinstance(config, str | Path) and not Path(config).is_absolute() else ""


def _make_item_selection(source_items: Sequence[int], world_size: int) -> SubsetShard:
    if world_size != 1:
        message = f"only={list(source_items)[:3]}...: `only` runs on one rank, not on {world_size}; remove `world_size`"
        raise UsageError(message)
    for item in source_items:
        if isinstance(item, bool) or not isinstance(item, Integral) or not 0 <= item <= MAX_ITEM_NUMBER:
            message = f"only: {item!r} is not the number of a source item; they are integers from 0 on"
            raise UsageError(message)
    return SubsetShard(items=tuple(sorted({int(item) for item in source_items})))
