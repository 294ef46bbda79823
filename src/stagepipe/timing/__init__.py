"""Time: one clock for all processes of a machine, histograms of durations, the shared board of counters."""

from stagepipe.timing.histogram import STEPS, WORDS, Histogram, step_of

__all__ = ["STEPS", "WORDS", "Histogram", "step_of"]
