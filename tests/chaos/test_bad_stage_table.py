"""The table of bad stages can be printed, started either way."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SCRIPT = "tests/chaos/bad_stage_table.py"


@pytest.mark.parametrize("start", [[SCRIPT], ["-m", "tests.chaos.bad_stage_table"]], ids=["file", "module"])
def test_the_table_prints_the_row_of_a_bad_stage(start):
    command = [sys.executable, *start, "recurses"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    (row,) = finished.stdout.splitlines()[2:]
    assert row.startswith("| `recurses` | recurses without end | stage bad, worker 0, item 5: RecursionError")
    assert row.endswith("| nothing |")
