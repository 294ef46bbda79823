"""Tuning: measures a pipeline, applies what its report offers, and keeps what pays. For `stagepipe tune`.

session    `tune`: the search, with real runs whose output goes to temporary folders; in the caller's process
decisions  which change is next and whether it pays, from pairs of runs; pure
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
