"""Tuning: measures a pipeline, applies what its report offers, and keeps what pays. For `stagepipe tune`.

session    `tune`: the search, with real runs; in the caller's process
decisions  which change is next and whether it pays, from pairs of runs; pure
measuring  runs a layout and takes its time
sandbox    temporary folders for what these runs write
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
from stagepipe.tuning.measuring import LayoutRunner
from stagepipe.tuning.sandbox import OutputSandbox
from stagepipe.tuning.session import TuneObserver, TuneOptions, TuneResult, tune

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
