"""Each bad stage ends with an error that names stage, item and cause, and leaves nothing behind."""

from __future__ import annotations

import re
import tempfile

import pytest

from tests.support.bad_stage_table import BAD_STAGE_CASES, run_case

MAX_DURATION_S = 25.0


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    """A temporary folder for this test alone, as other runs use the machine at the same time."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.uses, marks=[pytest.mark.slow] if case.slow else []) for case in BAD_STAGE_CASES],
)
def test_a_bad_stage_ends_with_a_clear_error(case, monkeypatch):
    outcome = run_case(case, monkeypatch)
    assert not outcome.leftovers
    assert outcome.seconds < MAX_DURATION_S
    if not case.error_pattern or (case.may_pass and outcome.error is None):
        assert (outcome.error, outcome.items) == (None, outcome.item_count)
        return
    assert outcome.error is not None, f"{outcome.items} items and no error"
    assert outcome.error.stage == case.stage
    assert outcome.error.worker == 0
    assert re.search(case.error_pattern, str(outcome.error), re.DOTALL), str(outcome.error)
    assert not case.item or outcome.error.item == case.item
