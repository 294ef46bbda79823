"""Real runs with planted bottlenecks get the right verdict: their records are in `recorded/`.

`python -m benchmarks.verdicts --rounds 1 --records FOLDER` writes them; each is of a machine with two CPUs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.verdicts import CASES
from benchmarks.verdicts.__main__ import is_right
from benchmarks.verdicts.turn import decode_record
from stagepipe.report.verdict import judge

_FOLDER = Path(__file__).parent / "recorded"
_FILES = {case.name: _FOLDER / f"{case.name.replace(' ', '_')}.json" for case in CASES}


@pytest.mark.parametrize("case", [case for case in CASES if _FILES[case.name].exists()], ids=lambda case: case.name)
def test_the_verdict_on_a_recorded_run_is_right(case):
    verdict = judge(decode_record(_FILES[case.name].read_text()))
    assert is_right(case, msgspec.to_builtins(verdict)), verdict


def test_every_recorded_run_is_of_a_case():
    assert len(list(_FOLDER.iterdir())) >= 21
    assert set(_FOLDER.iterdir()) <= set(_FILES.values())
