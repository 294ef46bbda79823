"""Each training example, alone and in a framework, reaches the same result when it is stopped and resumed.

Each runs as a user runs it: in a process of its own, from another folder, without downloads.
"""

import os
import re
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def run(name, *arguments, folder):
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        env={**os.environ, **OFFLINE},
        capture_output=True,
        text=True,
        check=False,
    )


def until_nothing_runs_in(folder):
    """Wait until no process works in `folder`: the workers must end with their run, even if it is killed."""
    deadline = time.monotonic() + 60
    while left := [process for process in psutil.process_iter() if is_in(process, folder)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def is_in(process, folder):
    try:
        return process.cwd() == str(folder)
    except psutil.Error:  # it has ended, or belongs to another user
        return False


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_training_run_reaches_97_percent_and_one_that_is_killed_and_resumed_ends_with_the_same_weights(tmp_path):
    done = run("train_digits.py", "--prove", folder=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    assert "the weights are equal" in done.stdout
    assert re.findall("exit status (.*)", done.stdout) == ["0", "-9", "0"]
    assert "resuming after step 140, in epoch 4" in done.stdout
    accuracies = re.findall(r"accuracy: (.*)%", done.stdout)
    assert len(accuracies) == 2
    assert float(accuracies[0]) > 97
    until_nothing_runs_in(tmp_path)
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["with_accelerate.py", "with_hf_trainer.py", "with_lightning.py"])
def test_in_a_framework_a_run_that_was_stopped_in_mid_epoch_ends_with_the_same_weights(name, tmp_path):
    done = run(name, folder=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "the weights are equal" in done.stdout
    assert re.findall("trained up to step (.*)", done.stdout)[-2:] == ["129", "129"]
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
