"""The training examples do what they say: alone and in the frameworks, a run that was stopped ends as one that was not.

Each runs as a user runs it: in a process of its own, from another folder. Nothing may be downloaded.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
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


def processes_in(folder):
    """Of a run that was started in the folder: workers stay where the run was started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:  # it has ended, or is somebody else's
            continue
    return found


@pytest.mark.timeout(600)
def test_a_training_run_reaches_97_percent_and_one_that_is_killed_and_resumed_ends_with_the_same_weights(tmp_path):
    done = run("train_digits.py", "--prove", folder=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    assert "the weights are equal" in done.stdout
    assert re.findall("exit status (.*)", done.stdout) == ["0", "-9", "0"]
    assert "going on behind step 140, in epoch 4" in done.stdout
    accuracies = re.findall(r"accuracy: (.*)%", done.stdout)
    assert len(accuracies) == 2
    assert float(accuracies[0]) > 97


@pytest.mark.timeout(300)
def test_when_it_is_killed_its_workers_end_with_it(tmp_path):
    checkpoint = tmp_path / "digits.pt"
    done = run("train_digits.py", f"--checkpoint={checkpoint}", "--every=5", "--kill-at=7", folder=tmp_path)
    assert done.returncode == -9, f"{done.stdout}\n{done.stderr}"
    deadline = time.monotonic() + 60
    while processes_in(tmp_path):
        assert time.monotonic() < deadline, processes_in(tmp_path)
        time.sleep(0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["digits.pt"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["with_accelerate.py", "with_hf_trainer.py", "with_lightning.py"])
def test_in_a_framework_a_run_that_was_stopped_in_mid_epoch_ends_with_the_same_weights(name, tmp_path):
    done = run(name, folder=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "the weights are equal" in done.stdout
    assert re.findall("trained up to step (.*)", done.stdout)[-2:] == ["129", "129"]
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
