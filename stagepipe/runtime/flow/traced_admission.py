"""The admission controller of a run that is traced. In the worker that feeds a segment."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from stagepipe.runtime.flow.admission import AdmissionController
from stagepipe.timing import TraceBuffer, TraceKind


class TracedAdmissionController(AdmissionController):
    """An admission controller that traces each wait."""

    def __init__(self, trace: TraceBuffer, *args: Any) -> None:
        """`args`: those of `AdmissionController`."""
        super().__init__(*args)
        self._trace = trace

    def _wait_for_space(self, item: int, is_interrupted: Callable[[], bool]) -> bool:
        begin_ns = perf_counter_ns()
        is_admitted = super()._wait_for_space(item, is_interrupted)
        self._trace.add(TraceKind.WAIT_FOR_ADMISSION, begin_ns, perf_counter_ns(), (item,))
        return is_admitted


def make_admission(trace: TraceBuffer | None, *args: Any) -> AdmissionController:
    """Return an `AdmissionController` with these arguments, one that is traced if there is a trace."""
    return AdmissionController(*args) if trace is None else TracedAdmissionController(trace, *args)
