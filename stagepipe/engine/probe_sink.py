"""Runs the sink of a pipeline in a probe, where it can write to a temporary folder. In the process of the caller."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from stagepipe.core import build_target
from stagepipe.plan import Plan
from stagepipe.spec import Target

_BUILT_IN_SINKS = "stagepipe.sinks"
_FOLDER_ARGUMENT = "path"


class ProbeSink:
    """Calls a sink and measures it. Without a sink it drops the items."""

    def __init__(self, sink: Callable[[Any], Any] | None, *, is_measured: bool) -> None:
        """`is_measured`: the calls are those of the run."""
        self._sink = sink
        self._is_measured = is_measured
        self._durations_ns: list[int] = []

    def write(self, item: Any) -> None:
        """Pass an item to the sink."""
        if self._sink is None:
            return
        started_ns = perf_counter_ns()
        self._sink(item)
        self._durations_ns.append(perf_counter_ns() - started_ns)

    @property
    def mean_ns(self) -> float | None:
        """The mean time of a call, without the first if there are several; None if it is not known."""
        if not self._is_measured:
            return None
        durations_ns = self._durations_ns[1:] or self._durations_ns
        return sum(durations_ns) / max(len(durations_ns), 1)


@contextmanager
def open_probe_sink(plan: Plan) -> Iterator[ProbeSink]:
    """Build the sink of a plan to write to a temporary folder. A sink that is not built in does not run."""
    sink_spec = plan.sinks[0] if len(plan.sinks) == 1 else None
    target = sink_spec.target if sink_spec is not None and not sink_spec.writes_parts else None
    if target is None or not _is_built_in(target) or _FOLDER_ARGUMENT not in target.arguments:
        yield ProbeSink(None, is_measured=not plan.sinks)
        return
    with tempfile.TemporaryDirectory(prefix="stagepipe-probe-") as folder:
        arguments = {**target.arguments, _FOLDER_ARGUMENT: str(Path(folder) / "sink")}
        sink = build_target(target.uses, arguments, plan.config_dir)
        try:
            yield ProbeSink(sink, is_measured=True)
        finally:
            getattr(sink, "close", lambda: None)()


def _is_built_in(target: Target) -> bool:
    uses = target.uses
    return (uses if isinstance(uses, str) else getattr(uses, "__module__", "")).startswith(_BUILT_IN_SINKS)
