"""The public face: a pipeline from a config or from Python objects, whose iteration yields items."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stagepipe.config import PipelineSpec, load
from stagepipe.core import VERSION, UsageError
from stagepipe.engine.inline import InlineRun
from stagepipe.engine.iteration import Iteration, Stand, Standing
from stagepipe.engine.local import LocalRun
from stagepipe.engine.settling import Settled, look_ahead, settle
from stagepipe.engine.state import described, from_state, to_state
from stagepipe.plan import Chosen, Even, Plan, Shard, make_plan, this_machine
from stagepipe.plan import load as load_curves
from stagepipe.plan.outlook.model import Outlook
from stagepipe.report import DeadLetter, Progress, Report, build, dead_letter
from stagepipe.runtime.lines import Show, show_lines
from stagepipe.transport import Lease

_CLOSED = "this pipeline is closed; make a new one"


class Pipeline:
    """A pipeline that is ready to run. Use it as a context manager; each iteration is an epoch.

    `config` is the path of a YAML file, a mapping of the same form (in which `uses` may be a function or a class), or
    an OmegaConf object; `overrides` are texts such as `"stages.decode.workers=8"`. With `inline` everything runs in
    this process. `limit` ends an epoch after so many source items. Of several ranks each takes its part at the source:
    item i of its order goes to rank i % world_size, and `even` gives all the same number of them: `"pad"` repeats the
    first, `"drop"` leaves the last out. With `only`, these items of the source are run alone, with the seeds that they
    have among all.

    >>> def square(number):
    ...     return number * number
    >>> config = {"source": {"uses": range(4)}, "stages": [{"name": "square", "uses": square, "workers": 2}]}
    >>> with Pipeline(config) as pipeline:
    ...     print(list(pipeline))
    [0, 1, 4, 9]
    >>> pipeline.report().run.items_out
    4

    Raises ConfigError with all the config's problems at once; RunError, while iterating, when the run fails.
    What is yielded is the caller's own and writable; arrays lie in shared memory, which is used again when the last
    view of them is gone.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | object,
        overrides: Sequence[str] = (),
        *,
        inline: bool = False,
        limit: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        even: Even | None = None,
        only: Sequence[int] | None = None,
    ) -> None:
        """Check the config; nothing is started yet."""
        self.shard = Shard(rank, world_size, even) if only is None else _chosen(only, world_size)
        self.spec: PipelineSpec = load(config, overrides)
        self._inline, self._limit = inline, limit
        self._run: LocalRun | InlineRun | None = None
        self.consumer_name = "consumer"
        """What the report calls whoever iterates: a `Loader` sets it to the training step."""
        self.keep_pages = False
        """Whether the pages of idle blocks stay: a `Loader` that locks them for a GPU sets it before the start."""
        self.show_lines: Show = show_lines
        """Where the lines go that workers print and log: `stagepipe run --log-json` sets it before the start."""
        self._standing = Standing()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def plan(self) -> Plan:
        """What will run. Measures this machine's cost curves if they are not cached, and settles `workers: auto`."""
        return self._planned(self._settled.spec)

    def _planned(self, spec: PipelineSpec) -> Plan:
        plan = make_plan(spec, this_machine(), load_curves(VERSION), limit=self._limit)
        return dataclasses.replace(plan, shard=self.shard, keep_pages=self.keep_pages)

    @cached_property
    def _settled(self) -> Settled:
        return settle(self.spec, self._planned, inline=self._inline)

    @property
    def chosen(self) -> tuple[str, ...]:
        """What `workers: auto` became, one line a stage. Asks the machine: a few items are run through the stages."""
        return self._settled.chosen

    def outlook(self) -> Outlook:
        """What `stagepipe plan` says: each hop's pieces, modes and costs, each stage's, and what would be better.

        Runs the stages on the first few items, in processes of their own; the sink is not run. Raises RunError if a
        stage fails, as iterating would.

        >>> Pipeline("train.yaml").outlook().advice[0].edits  # doctest: +SKIP
        ('stages.decode.workers=3',)
        """
        return look_ahead(self._settled, self._planned)

    def start(self) -> Self:
        """Start the workers, if that has not been done. Iterating does it."""
        self._started()
        return self

    def _started(self) -> LocalRun | InlineRun:
        if self._standing.closed:
            raise UsageError(self._standing.closed)
        if self._run is None:
            self._run = InlineRun(self.plan) if self._inline else LocalRun(self.plan, self.show_lines)
            self._finalizer = weakref.finalize(self, _close_in, os.getpid(), self._run.close)
        return self._run

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of the one that was loaded; work on it begins now.

        An iterator of an earlier one ends its life here: going on with it raises UsageError. One that was never asked
        for an item was no epoch, so code that calls `iter` only to see that it can does not lose one.
        """
        stand = Stand(self._started(), self._standing.next)
        self._standing.begin(stand)
        return Iteration(stand, self._standing, self)

    def __len__(self) -> int:
        """How many items an epoch yields; starts the workers and waits until their stages are built, if need be.

        TypeError where nobody knows: behind a stream, a generator, a Filter or an Unbatch. A function that drops items
        with SKIP is not seen to do so: then it is the most that there can be.
        """
        length = self._started().length()
        if length is None:
            message = "nobody knows how many items this pipeline yields: a stream, a generator or a filter is in it"
            raise TypeError(message)
        return length

    def local_run(self) -> LocalRun:
        """The run itself, started, for whoever deals its items out to several processes. UsageError when inline."""
        run = self._started()
        if not isinstance(run, LocalRun):
            message = "an inline pipeline has no memory that other processes could share; leave `inline` out"
            raise UsageError(message)
        return run

    @property
    def description(self) -> str:
        """All of the config that decides what comes out, as JSON: what a state is compared by."""
        return self._described

    def block_of(self, address: int, nbytes: int) -> Lease | None:
        """The lease on the block in which these bytes of a yielded item lie; None if they lie in none."""
        return self._run.block_of(address, nbytes) if isinstance(self._run, LocalRun) else None

    # ------------------------------------------------------------------ where it stands

    @property
    def epoch(self) -> int:
        """The epoch that `state_dict` speaks of: the one under way, or the next where none is."""
        return self._standing.position().epoch

    @property
    def items_had(self) -> int:
        """How many items of that epoch have been yielded."""
        return self._standing.position().items

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch `epoch`: from its start, or from its loaded place. UsageError if below 0."""
        self._standing.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands: behind the last item that was yielded, whatever was made ahead of it.

        Flat, of numbers and texts, so it can be pickled, be written as JSON, and go into any checkpoint. Taking it
        costs some microseconds and touches no worker.
        """
        return to_state(self._standing.position(), self._described, self.shard)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken; those after it are whole epochs.

        The number of workers, the transport and the machine may be others. Raises UsageError, with the difference,
        for a state of a config that gives other items.
        """
        position = from_state(state, self._described, self.shard)
        if self._inline and self.spec.order == "any" and position.items:
            message = "a state in the middle of an epoch of `order: any` cannot be gone on with inline"
            raise UsageError(message)
        self._standing.load(position)

    @cached_property
    def _described(self) -> str:
        return described(self.spec, self._limit, self.shard)

    # ------------------------------------------------------------------ what is told of it

    @property
    def started(self) -> bool:
        """Whether anything has run."""
        return self._run is not None

    def progress(self) -> Progress:
        """Where the run stands."""
        return self._started().progress()

    def report(self) -> Report:
        """The report so far, or of the whole run once it is closed. An inline run has none."""
        if not isinstance(self._run, LocalRun):
            message = "there is no report: " + ("an inline run has no hops" if self._inline else "nothing has run yet")
            raise UsageError(message)
        return build(dataclasses.replace(self._run.record(), consumer_name=self.consumer_name))

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The items that failed and were skipped (`on_error: skip`), so far."""
        return () if self._run is None else tuple(map(dead_letter, self._run.letters.all()))

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the workers and give everything back. The report stays, and so does the state."""
        self._standing.closed = _CLOSED
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._run is not None:
            self._run.close()

    def __enter__(self) -> Self:
        """The pipeline itself, started."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        if self._run is not None:
            self._run.__exit__(kind, error, trace)
        self.close()


def _chosen(only: Sequence[int], world_size: int) -> Chosen:
    if world_size != 1:
        message = f"only={list(only)[:3]}... of world_size={world_size}: chosen items are run by one rank"
        raise UsageError(message)
    return Chosen(items=tuple(sorted(set(only))))


def _close_in(pid: int, close: Callable[[], None]) -> None:
    """Close a pipeline that was collected: in its own process, not in one that was forked off it."""
    if os.getpid() == pid:
        close()
