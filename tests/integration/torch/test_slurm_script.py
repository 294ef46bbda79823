"""deploy/slurm: what Slurm starts, signals and requeues, with its variables set by hand; and the script of `sbatch`."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "deploy" / "slurm"
CONFIG = """
seed: 3
source: {uses: stagepipe.sources.numbers, with: {count: 64}}
stages:
  - {name: make, uses: rows.make}
  - {name: batch, uses: stagepipe.stages.Batch, with: {size: 4}}
"""
ROWS = """
import time
import numpy as np

def make(number):
    time.sleep(0.1)
    return {"id": number, "x": np.full(4, number / 100, np.float32)}
"""


def start(folder: Path, rank: int, port: int) -> subprocess.Popen[str]:
    environ = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environ |= {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, FOLDER / "train.py", "train.yaml", "--epochs", "1"]
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)


def run_step(folder: Path, *, is_signalled: bool = False) -> tuple[list[int], list[str]]:
    """Run both ranks. Returns their exit statuses, and the lines of their steps."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = [start(folder, rank, port) for rank in range(2)]
    first = [rank.stdout.readline() for rank in ranks if rank.stdout]
    if is_signalled:
        time.sleep(0.5)
        ranks[1].send_signal(signal.SIGUSR1)  # one of them may be first
    texts = [first[number] + rank.communicate(timeout=100)[0] for number, rank in enumerate(ranks)]
    lines = [line for text in texts for line in text.splitlines() if re.match(r"rank \d: step", line)]
    return [rank.returncode for rank in ranks], lines


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_requeued_job_goes_on_in_mid_epoch(tmp_path: Path):
    lines: list[list[str]] = []
    for name in ("whole", "requeued"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.yaml").write_text(CONFIG)
        (folder / "rows.py").write_text(ROWS)
        codes, found = run_step(folder, is_signalled=name == "requeued")
        if name == "requeued":
            assert codes == [99, 99]
            assert len(found) < 16
            codes, rest = run_step(folder)
            found += rest
        assert codes == [0, 0]
        lines.append(sorted(found))
    assert len(lines[0]) == 16
    assert lines[1] == lines[0]


def test_the_script_of_sbatch_is_one_of_bash():
    script = FOLDER / "train.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    assert "--signal=USR1@" in script.read_text()
    assert "-eq 99" in script.read_text()
