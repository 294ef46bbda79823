"""The trace of a run as a file for Perfetto and `chrome://tracing`. Pure but for the file.

trace_data   what the engine knows of a traced run: the input of this folder
slices       records of a process as slices that nest
flows        an item's way over a hop: which sending belongs to which receipt
trace_file   all of it as JSON: tracks, slices, flows, counters, deaths
"""

from stagepipe.report.trace.trace_data import ClockReading, TraceData, TraceDeath, TraceTrack
from stagepipe.report.trace.trace_file import TraceSummary, write_trace

__all__ = ["ClockReading", "TraceData", "TraceDeath", "TraceSummary", "TraceTrack", "write_trace"]
