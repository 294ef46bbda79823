"""`stagepipe run --trace`: what it prints, what it returns when the file cannot be written, and Ctrl-C."""

import gzip
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import list_run_processes
from tests.support.terminal import COMMAND, Terminal
from tests.support.trace_check import check_trace, load_trace

pytestmark = pytest.mark.timeout(90)
CONFIG = """
name: traced
source: {uses: stagepipe.sources.numbers, with: {count: %d}}
stages:
  - {name: slow, uses: tests.support.stages.nap, with: {seconds: 0.001}, workers: 2}
"""


def run(folder: Path, *options: str, count: int = 50) -> "subprocess.CompletedProcess[str]":
    (folder / "c.yaml").write_text(CONFIG % count)
    command = [COMMAND, "run", str(folder / "c.yaml"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_says_where_the_trace_is(tmp_path):
    path = tmp_path / "t.json.gz"
    done = run(tmp_path, "--trace", str(path))
    assert done.returncode == 0, done.stderr
    assert f"wrote {path}\n" in done.stderr
    assert json.loads(gzip.decompress(path.read_bytes()))["otherData"]["pipeline"] == "traced"
    quiet = run(tmp_path, "--trace", str(path), "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_a_trace_that_cannot_be_written_is_named_and_the_report_is_still_there(tmp_path):
    done = run(tmp_path, "--trace", "/proc/t.json", "--report", str(tmp_path / "r.json"))
    assert done.returncode == 1
    assert "the trace /proc/t.json could not be written: No such file or directory" in done.stderr
    assert "wrote /proc/t.json" not in done.stderr
    assert done.stderr.endswith("the trace /proc/t.json was not written: see the warning above\n")
    assert json.loads((tmp_path / "r.json").read_text())["run"]["status"] == "finished"


def test_a_trace_in_the_config_may_not_be_the_file_of_the_report(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG % 5 + f"report: {{trace: {tmp_path}/same.json}}\n")
    command = [COMMAND, "run", str(tmp_path / "c.yaml"), "--report", f"{tmp_path}/same.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "would write 2 outputs to the same file" in done.stderr


def test_a_long_run_keeps_its_end_and_counts_dropped_events(tmp_path):
    (tmp_path / "c.yaml").write_text("name: long\nsource: {uses: stagepipe.sources.numbers, with: {count: 30000}}\n")
    path = tmp_path / "t.json.gz"
    command = [COMMAND, "run", str(tmp_path / "c.yaml"), "--trace", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 0, done.stderr
    check = check_trace(load_trace(path))
    assert not check.problems
    dropped = check.other["dropped_records"]
    assert dropped > 0
    assert f"holds the end of the run; {dropped:,} older records did not fit and were dropped" in done.stderr


@pytest.mark.parametrize("option", ["--trace", "report.prometheus"])
def test_ctrl_c_ends_a_run_that_shows_its_progress(option, tmp_path):
    path = tmp_path / "t.json.gz"
    arguments = ["--trace", str(path)] if option == "--trace" else ["report.prometheus=127.0.0.1:0"]
    terminal = Terminal(tmp_path, CONFIG % 1_000_000, COMMAND, "run", "c.yaml", *arguments)
    try:
        terminal.shows(r"\d of 1,000,000 items")
        terminal.type(b"\x03")
        assert terminal.ends(40) == 128 + signal.SIGINT
        assert "Traceback" not in terminal.text
    finally:
        terminal.kill()
    assert not list_run_processes()
    if option == "--trace":
        assert not check_trace(load_trace(path)).problems
