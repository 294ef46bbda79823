"""Time: one clock for all processes of a machine, histograms of durations, the shared board of counters."""

from stagepipe.timing.board import STAGE_WORDS, Board, Layout, Region, StageRegion, make_board
from stagepipe.timing.histogram import STEPS, WORDS, Histogram, step_of
from stagepipe.timing.ledger import LEDGER_WORDS, Entry, Ledger, Way
from stagepipe.timing.recorder import Recorder
from stagepipe.timing.words import RECEIVE_PHASES, SEND_PHASES, StageWord, State, Word

__all__ = [
    "LEDGER_WORDS",
    "RECEIVE_PHASES",
    "SEND_PHASES",
    "STAGE_WORDS",
    "STEPS",
    "WORDS",
    "Board",
    "Entry",
    "Histogram",
    "Layout",
    "Ledger",
    "Recorder",
    "Region",
    "StageRegion",
    "StageWord",
    "State",
    "Way",
    "Word",
    "make_board",
    "step_of",
]
