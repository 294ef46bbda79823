"""benchmarks.guard notices that a hop has become dearer, and nothing else."""

import os
import shutil
import statistics
import subprocess
import sys

import pytest

from benchmarks import guard_turn
from benchmarks.common.figures import Estimate
from benchmarks.guard import find_failed
from tests.support.paths import ROOT
from tests.support.planted import plant

HAS_COMMITS = (ROOT / ".git").exists()
_ROUNDS = 9


@pytest.fixture
def guard_turn_alone(tmp_path, monkeypatch):
    """Make `guard_turn` importable by its own name, as in a turn of the guard."""
    shutil.copy(ROOT / "benchmarks" / "guard_turn.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def run_guard(*arguments, tree=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.guard", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "ratio, is_failed",
    [
        (Estimate(1.30, 1.16, 1.40, 0.96), True),
        (Estimate(1.30, 1.02, 1.60, 0.96), True),
        (Estimate(1.14, 1.12, 1.17, 0.96), False),
        (Estimate(1.30, 0.90, 1.60, 0.96), False),
    ],
)
def test_a_case_fails_that_is_dearer_than_the_limit_and_surely_dearer(ratio, is_failed):
    same = Estimate(1.0, 0.9, 1.1, 0.96)
    assert find_failed({"small": same, "image": ratio}, 1.15) == (["image"] if is_failed else [])


@pytest.mark.parametrize(
    "case, expected",
    [
        ("small", {"id": 0, "label": 0}),
        ("stage", {"id": 0, "label": 0}),
        ("image", {"id": 0, "label": 0, "image": 1_204_224}),
        ("batch", {"id": 256, "label": 256}),
    ],
)
@pytest.mark.usefixtures("guard_turn_alone")
def test_a_case_sends_what_its_name_says(case, expected, monkeypatch):
    import stagepipe

    monkeypatch.setattr(guard_turn, "CASES", dict.fromkeys(guard_turn.CASES, 512))
    with stagepipe.Pipeline(guard_turn.make_config(case), inline=True) as pipeline:
        item = next(iter(pipeline))
    assert {key: getattr(value, "size", value) for key, value in item.items()} == expected


@pytest.mark.skipif(not HAS_COMMITS, reason="not a clone")
def test_a_base_that_does_not_exist_is_one_sentence():
    done = run_guard("--base", "no-such-commit")
    assert done.returncode == 2
    assert done.stderr == "guard: 'no-such-commit' is no commit of this repository: give one with --base\n"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not HAS_COMMITS, reason="not a clone")
@pytest.mark.parametrize("share", [0, 0.3])
@pytest.mark.usefixtures("guard_turn_alone")
def test_a_hop_that_became_30_percent_dearer_fails(share, tmp_path):
    item_us = statistics.median(guard_turn.measure_us("small") for _ in range(3))
    with plant(tmp_path, int(share * item_us * 1000)) as tree:
        done = run_guard("--base", "HEAD", "--rounds", str(_ROUNDS), tree=tree)
    assert ("small " in done.stdout, done.returncode) == (True, 1 if share else 0), done.stdout + done.stderr
    failed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith("FAIL")}
    assert ("small" in failed) == bool(share), done.stdout
