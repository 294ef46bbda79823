"""Each bad stage has a named outcome: who, at which item, why; and nothing is left behind."""

from __future__ import annotations

import re
import tempfile

import pytest

from tests.chaos.cases import understood
from tests.zoo.table import ANIMALS, show

SOON_S = 25.0


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    """A folder for temporary files of this test's runs alone: others are going on on this machine."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "animal",
    [pytest.param(each, id=each.uses, marks=[pytest.mark.slow] if each.slow else []) for each in ANIMALS],
)
def test_a_bad_stage_has_a_named_outcome(animal, monkeypatch):
    if any(not understood(key, value) for key, value in animal.stage_keys.items()):
        pytest.skip("this version has no `timeout`")
    seen = show(animal, monkeypatch)
    assert not seen.left
    assert seen.seconds < SOON_S
    if not animal.said or (animal.perhaps and seen.error is None):
        assert (seen.error, seen.items) == (None, seen.count)
        return
    assert seen.error is not None, f"{seen.items} items and no error"
    assert seen.error.stage == animal.stage
    assert seen.error.worker == 0
    assert re.search(animal.said, str(seen.error), re.DOTALL), str(seen.error)
    assert not animal.item or seen.error.item == animal.item
