"""An island: one pipeline with its share of the source, run to its sinks. In an actor on its node."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stagepipe.cluster.placement import place_sinks
from stagepipe.core import RunError, StagepipeError

if TYPE_CHECKING:
    from stagepipe.api import Pipeline
    from stagepipe.report import DeadLetter, LiveRun


@dataclass(frozen=True, kw_only=True)
class IslandOptions:
    """The options of `stagepipe run` that each island takes."""

    overrides: tuple[str, ...] = ()
    limit: int | None = None
    resume: bool = False
    allow_changed: bool = False
    uses_caches: bool = True


@dataclass(frozen=True, kw_only=True)
class IslandRequest:
    """What an island runs: the config by its path, which each node has, and its share of the source."""

    config: str
    options: IslandOptions
    rank: int
    count: int
    working_folder: str
    sys_path: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class IslandResult:
    """How an island ended. `error` is empty if it has finished, `is_usage_error` if it could not begin.

    `report` is the JSON of its report; None if it had not started, or if its node was lost.
    """

    rank: int
    node: str
    error: str = ""
    is_usage_error: bool = False
    is_lost: bool = False
    was_stopped: bool = False
    """Whether it was ended early because another island had failed."""
    was_finished: bool = False
    """Whether an earlier run of the job had written all of it already."""
    report: bytes | None = None
    dead_letters: tuple[DeadLetter, ...] = ()


class Island:
    """The actor: `run` blocks until the share is done; `get_progress` and `stop` are called meanwhile."""

    def __init__(self, request: IslandRequest, node: str) -> None:
        """Take the place of the calling process: its folder, and its path of modules."""
        os.chdir(request.working_folder)
        sys.path[:0] = [path for path in request.sys_path if path not in sys.path]
        self._request = request
        self._node = node
        self._pipeline: Pipeline[Any] | None = None
        self._is_stopped = False

    def is_ready(self) -> bool:
        """Answer that the actor has a place on its node."""
        return True

    def run(self) -> IslandResult:
        """Run the share to its end. Errors are in the result."""
        try:
            was_finished = self._run()
        except Exception as error:  # noqa: BLE001 - what is raised here would look like a lost node
            if self._is_stopped:  # closed from another thread, at any point of its start or its run
                return self._make_result(was_stopped=True)
            if not isinstance(error, StagepipeError):
                traceback.print_exc()  # to the log of the actor
                return self._make_result(error=f"{type(error).__name__}: {error}")
            return self._make_result(error=str(error), is_usage_error=not isinstance(error, RunError))
        return self._make_result(was_finished=was_finished, was_stopped=self._is_stopped)

    def _run(self) -> bool:
        from stagepipe.api import Pipeline, open_shards, run_to_sink

        request, options = self._request, self._request.options
        pipeline = Pipeline[Any](
            request.config,
            [*options.overrides, "engine=local"],
            limit=options.limit,
            rank=request.rank,
            world_size=request.count,
            cache=options.uses_caches,
        )
        pipeline.spec = place_sinks(pipeline.spec, request.rank, request.count)
        with open_shards(pipeline, resume=options.resume, allow_changed=options.allow_changed) as shards:
            if shards is not None and shards.is_finished:
                return True
            self._pipeline = pipeline
            with pipeline:
                if not self._is_stopped:
                    run_to_sink(pipeline, lambda _: None, shards=shards)
        return False

    def _make_result(self, **fields: Any) -> IslandResult:
        from stagepipe.report import to_json

        pipeline = self._pipeline
        if pipeline is not None and pipeline.started:
            fields |= {"report": to_json(pipeline.report()), "dead_letters": pipeline.dead_letters}
        return IslandResult(rank=self._request.rank, node=self._node, **fields)

    def get_progress(self) -> LiveRun | None:
        """Return the progress of the share; None before the start and after the end."""
        pipeline = self._pipeline
        try:
            return pipeline.progress() if pipeline is not None and pipeline.started else None
        except StagepipeError:  # it has just been closed
            return None

    def stop(self) -> None:
        """End the run: what is committed stays, for a resume."""
        self._is_stopped = True
        if self._pipeline is not None and self._pipeline.started:
            self._pipeline.close()
