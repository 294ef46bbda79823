"""Tuning for `stagepipe tune`: measures a pipeline, applies changes that its report offers, and keeps improvements.

session    `tune`: the search, with real runs whose output goes to temporary folders; runs in the caller's process
decisions  chooses the next change, and decides from pairs of runs whether it pays; pure
"""

from stagepipe.tuning.decisions import (
    MAX_PAIRS,
    MIN_GAIN,
    MIN_PAIRS,
    Judgement,
    PairOfRuns,
    RatioInterval,
    Tuner,
    TuneStep,
    estimate_ratio,
    judge_pairs,
)
from stagepipe.tuning.session import LayoutRunner, OutputSandbox, TuneObserver, TuneOptions, TuneResult, tune

__all__ = [
    "MAX_PAIRS",
    "MIN_GAIN",
    "MIN_PAIRS",
    "Judgement",
    "LayoutRunner",
    "OutputSandbox",
    "PairOfRuns",
    "RatioInterval",
    "TuneObserver",
    "TuneOptions",
    "TuneResult",
    "TuneStep",
    "Tuner",
    "estimate_ratio",
    "judge_pairs",
    "tune",
]
