"""The public face: a pipeline from a config or from Python objects, whose iteration yields items."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stagepipe.config import PipelineSpec, load
from stagepipe.core import VERSION, UsageError
from stagepipe.engine.inline import InlineRun
from stagepipe.engine.local import LocalRun
from stagepipe.plan import Plan, make_plan, this_machine
from stagepipe.plan import load as load_curves
from stagepipe.report import Progress, Report, build

_CLOSED = "this pipeline is closed; make a new one"


class Pipeline:
    """A pipeline that is ready to run. Use it as a context manager; each iteration is an epoch.

    `config` is the path of a YAML file, a mapping of the same form (in which `uses` may be a function or a class), or
    an OmegaConf object; `overrides` are texts such as `"stages.decode.workers=8"`. With `inline` everything runs in
    this process. `limit` ends an epoch after so many source items.

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
    ) -> None:
        """Check the config; nothing is started yet."""
        self.spec: PipelineSpec = load(config, overrides)
        self._inline, self._limit = inline, limit
        self._run: LocalRun | InlineRun | None = None
        self._closed = False
        self._epoch = -1
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def plan(self) -> Plan:
        """What will run. Measures this machine's cost curves if they are not cached."""
        return make_plan(self.spec, this_machine(), load_curves(VERSION), limit=self._limit)

    def start(self) -> Self:
        """Start the workers, if that has not been done. Iterating does it."""
        self._started()
        return self

    def _started(self) -> LocalRun | InlineRun:
        if self._closed:
            raise UsageError(_CLOSED)
        if self._run is None:
            self._run = InlineRun(self.plan) if self._inline else LocalRun(self.plan)
            self._finalizer = weakref.finalize(self, self._run.close)
        return self._run

    def __iter__(self) -> Iterator[Any]:
        """One epoch. An iterator of an earlier one ends its life here: going on with it raises UsageError."""
        run = self._started()
        self._epoch += 1
        return self._iterate(run, self._epoch)

    def _iterate(self, run: LocalRun | InlineRun, epoch: int) -> Iterator[Any]:
        items = run.epoch(epoch)
        while True:
            if self._closed:
                raise UsageError(_CLOSED)
            if self._epoch != epoch:
                message = "a newer iteration of this pipeline has begun; only one can be alive at a time"
                raise UsageError(message)
            try:
                item = next(items)
            except StopIteration:
                return
            yield item
            del item

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
        return build(self._run.record())

    def close(self) -> None:
        """End the workers and give everything back. The report stays."""
        self._closed = True
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
