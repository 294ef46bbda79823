"""`stagepipe run --resume`: a run whose main process is killed continues after the last item of its sink."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import stagepipe

pytestmark = pytest.mark.timeout(90)
COMMAND = str(Path(sys.executable).parent / "stagepipe")
COUNT = 120
CONFIG = f"""
name: resumed
source: {{uses: stagepipe.sources.numbers, with: {{count: {COUNT}}}}}
stages:
  - {{name: make, uses: ops.make, workers: 2}}
sink: {{uses: stagepipe.sinks.npz, with: {{path: out}}}}
"""
OPS = """
import time
import numpy as np
def make(item):
    time.sleep(0.03)
    return {"x": np.full(3, item)}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "resumed.yaml").write_text(CONFIG)
    (tmp_path / "ops.py").write_text(OPS)
    return tmp_path


def started(folder: Path, *more: str, state: Path | str = "state.json") -> subprocess.Popen[str]:
    command = [COMMAND, "run", "resumed.yaml", "--quiet", "--resume", str(state), *more]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(folder: Path, *more: str, state: Path | str = "state.json") -> tuple[int, str]:
    process = started(folder, *more, state=state)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


def test_a_run_that_is_killed_twice_resumes_to_its_end(folder):
    out, state = folder / "out", folder / "state.json"
    for min_items in (10, 50):
        process = started(folder)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and not (state.exists() and (out / f"{min_items:06d}.npz").exists()):
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
    assert finished(folder) == (0, "")
    assert sorted(file.name for file in out.iterdir()) == [f"{number:06d}.npz" for number in range(COUNT)]
    assert [int(np.load(file)["x"][0]) for file in sorted(out.iterdir())] == list(range(COUNT))
    code, error = finished(folder)
    assert code == 0
    assert "this run has finished" in error


def test_a_run_that_is_killed_in_its_first_item_resumes(folder):
    (folder / "ops.py").write_text("""
import os
import signal
from pathlib import Path
class Killing:
    def __init__(self, number): self.number = number
    def __array__(self, *_, **__):
        import numpy as np
        if not Path("killed").exists():
            Path("killed").touch()
            Path("out/000000.tmp1").touch()  # what a kill in the middle of a file leaves
            os.kill(os.getpid(), signal.SIGKILL)
        return np.array(self.number)
def make(number):
    return Killing(number)
""")
    arguments = ("--inline", "source.with.count=3", "stages.make.workers=1")
    state = Path("new") / "state.json"
    assert finished(folder, *arguments, state=state)[0] == -signal.SIGKILL
    assert finished(folder, *arguments, state=state) == (0, "")
    assert sorted(file.name for file in (folder / "out").iterdir()) == [f"{number:06d}.npz" for number in range(3)]


def test_a_file_without_a_state_and_one_of_a_different_config_are_rejected(folder):
    (folder / "state.json").write_text("{}")
    code, error = finished(folder)
    assert code == 2
    assert "not the state of a stagepipe pipeline" in error
    (folder / "state.json").unlink()
    assert finished(folder, "source.with.count=3")[0] == 0
    code, error = finished(folder, "source.with.count=4")
    assert code == 2
    assert "source.with.count: saved 3, now 4" in error


def test_a_state_of_a_different_config_is_accepted_on_request(folder):
    with stagepipe.Pipeline(folder / "resumed.yaml", inline=True) as pipeline:
        for _ in itertools.islice(pipeline, COUNT - 3):
            pass
        (folder / "state.json").write_text(json.dumps(pipeline.state_dict()))
    code, error = finished(folder, "seed=7")
    assert code == 2
    assert "seed: saved 0, now 7" in error
    assert "--allow-changed" in error
    assert finished(folder, "seed=7", "--allow-changed") == (0, "")
    assert sorted(file.name for file in (folder / "out").iterdir()) == [
        f"{number:06d}.npz" for number in range(COUNT - 3, COUNT)
    ]
