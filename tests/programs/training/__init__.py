"""Training scripts that other people wrote, with a few lines changed.

runner     `Program` and what is done with one: compared, killed, timed
recording  `sitecustomize`, which writes down what reaches a model
images     photographs as data sets
vision     programs for images
text       programs for text and tokens
audio      programs for audio
digits     programs of Lightning
"""

from __future__ import annotations

from functools import partial

from tests.programs.tables import Table
from tests.programs.training import audio, digits, text, vision
from tests.programs.training.runner import run_program

PROGRAMS = (*vision.PROGRAMS, *text.PROGRAMS, *audio.PROGRAMS, *digits.PROGRAMS)

TABLE = Table(
    name="training",
    headings=("program", "of", "lines", "samples", "loss", "killed and resumed", "items/s", "memory", "notes"),
    cases={program.name: partial(run_program, program) for program in PROGRAMS},
)
