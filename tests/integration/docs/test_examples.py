"""Each example runs as a user runs it: in a process of its own, from another folder."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

ELSEWHERE = ("train_digits.py", "with_")  # test_training_examples.py runs these
EXAMPLES = [path for path in sorted(ROOT.glob("examples/*.py")) if not path.name.startswith(ELSEWHERE)]


def test_there_are_examples():
    assert {path.name for path in EXAMPLES} >= {"script.py", "training_loop.py"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_warns_of_nothing(path, tmp_path):
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
