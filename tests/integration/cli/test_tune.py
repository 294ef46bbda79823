"""`stagepipe tune`: a planted bottleneck ends with a layout that pays, and nothing of the user's is touched."""

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from stagepipe.cli.tune import TuneDisplay
from tests.support.command import call_here
from tests.support.paths import ROOT
from tests.support.processes import list_run_processes
from tests.support.terminal import COMMAND, Terminal

pytestmark = pytest.mark.timeout(110)

SLEEPING = """\
# One stage waits 10 ms for each item.
name: planted   # planted
source: {uses: stagepipe.sources.numbers, with: {count: 100000}}
stages:
  # the slow one
  - name: work
    uses: tests.support.stages.nap
    with: {seconds: 0.01}
    cache: {path: kept, key: "1"}

sink: {uses: stagepipe.sinks.jsonl, with: {path: out, part_items: 20}}
report: {html: r.html, json: r.json, trace: t.json}
"""


def hash_folder(folder: Path) -> dict[str, str]:
    """The contents of all files, and the names of all folders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "tune", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def project(tmp_path):
    (tmp_path / "c.yaml").write_text(SLEEPING)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "kept").mkdir()
    return tmp_path


@pytest.mark.slow
def test_a_planted_bottleneck_ends_with_more_workers_and_nothing_is_touched(project):
    before = hash_folder(project)
    done = call(project, "c.yaml", "--items", "150", "--time", "75s", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    workers = re.fullmatch(r"stages\.work\.workers=(\d+)", " ".join(result["overrides"]))
    assert int(workers[1]) >= 2, result
    assert result["end_items_per_s"] > 1.3 * result["start_items_per_s"]
    assert result["low"] > 1
    assert hash_folder(project) == before
    assert list_run_processes() == set()


@pytest.fixture
def offers(monkeypatch):
    """Reports offer four workers, whatever they measured: a machine that others use measures anything."""
    monkeypatch.setattr("stagepipe.tuning.session.list_offers", lambda _: iter([("stages.work.workers=4",)]))


CALM = ("stages.work.with={seconds: 0.1}", "stages.work.cache=null", "--items", "12")
"""Long sleeps, short runs: four workers pay on any machine."""


def test_write_edits_the_file_and_keeps_its_comments(project, offers, monkeypatch):
    monkeypatch.chdir(project)
    result = call_here("tune", "c.yaml", *CALM, "--write")
    assert result.exit_code == 0, result.stderr
    text = (project / "c.yaml").read_text()
    assert [line for line in text.splitlines() if line not in SLEEPING.splitlines()] == ["    workers: 4"]
    assert [line for line in SLEEPING.splitlines() if line not in text.splitlines()] == []
    assert "wrote c.yaml: stages.work.workers=4" in result.stderr
    assert sorted(path.name for path in project.iterdir()) == ["c.yaml", "kept", "out"]
    assert (project / "out" / "mine.txt").read_text() == "mine"


def test_a_change_that_does_not_pay_is_not_kept(project, monkeypatch):
    offered = ("stages.work.workers=1", "stages.work.with={seconds: 0.3}")
    monkeypatch.setattr("stagepipe.tuning.session.list_offers", lambda _: iter([offered]))
    result = call_here("tune", str(project / "c.yaml"), *CALM)
    assert result.exit_code == 0, result.stderr
    assert "not kept" in result.stderr
    assert "No change pays" in result.stdout


def test_a_change_that_cannot_run_is_not_kept(project, monkeypatch):
    offered = [("stages.work.fuse=maybe",), ("stages.work.with={seconds: -1}",)]
    monkeypatch.setattr("stagepipe.tuning.session.list_offers", lambda _: iter(offered))
    result = call_here("tune", str(project / "c.yaml"), *CALM)
    assert result.exit_code == 0, result.stderr
    assert "stages.work.fuse=maybe: not valid: " in result.stderr
    assert "{seconds: -1}: failed: " in result.stderr
    assert "No change pays" in result.stdout


def test_a_sink_of_ones_own_is_refused_before_anything_runs(project):
    own = SLEEPING.replace(
        "stagepipe.sinks.jsonl, with: {path: out, part_items: 20}", "tests.support.sink_stages.Notes, with: {path: n}"
    )
    (project / "c.yaml").write_text(own)
    result = call_here("tune", str(project / "c.yaml"))
    assert result.exit_code == 2
    assert "sink `tests.support.sink_stages.Notes`" in result.stderr
    assert "--allow-writes" in result.stderr
    assert not (project / "n").exists()


def test_ctrl_c_keeps_the_best_so_far_and_leaves_nothing(project, offers, monkeypatch):
    before = hash_folder(project)
    monkeypatch.chdir(project)
    own = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started with
    kept = TuneDisplay.end_step

    def interrupt(self, step):
        kept(self, step)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TuneDisplay, "end_step", interrupt)
    try:
        result = call_here("tune", "c.yaml", *CALM)
    finally:
        signal.signal(signal.SIGINT, own)
    assert result.exit_code == 130
    assert "interrupted: this is the best so far" in result.stdout
    assert "To run it: stagepipe run c.yaml" in result.stdout
    assert "stages.work.workers=4" in result.stdout
    assert hash_folder(project) == before


def test_ctrl_c_on_a_terminal_ends_it_within_a_change(project):
    (project / "temporary").mkdir()
    before = hash_folder(project)
    shown = Terminal(project, SLEEPING, COMMAND, "tune", "c.yaml")
    try:
        shown.shows(r"warm-up, \d+ items")
        shown.type(b"\x03")
        assert shown.ends() == 130
        shown.shows("interrupted: this is the best so far")
        assert "Traceback" not in shown.text
    finally:
        shown.kill()
    assert hash_folder(project) == before


def test_a_kill_leaves_nothing_after_a_moment(project):
    before = hash_folder(project)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [COMMAND, "tune", "c.yaml"], cwd=project, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: any(path.name.startswith("run-") for path in project.glob(".stagepipe-tune-*/*")))
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: hash_folder(project) == before)


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_stage_that_fails_ends_it_with_its_error(project):
    (project / "c.yaml").write_text(
        SLEEPING.replace("tests.support.stages.nap", "tests.support.failing_stages.fails_sometimes")
    )
    done = call(project, "c.yaml", "stages.work.with={salt: 1}", "--items", "50")
    assert done.returncode == 1
    assert "work" in done.stderr
    assert sorted(path.name for path in project.iterdir()) == ["c.yaml", "kept", "out"]


def test_ray_is_refused(project):
    result = call_here("tune", str(project / "c.yaml"), "engine=ray", "report=null")
    assert result.exit_code == 2
    assert "add engine=local" in result.stderr


def test_a_wrong_time_is_refused(project):
    result = call_here("tune", str(project / "c.yaml"), "--time", "soon")
    assert result.exit_code == 2
    assert "--time: expected a duration such as 20ms" in result.stderr


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(project):
    result = call_here("tune", str(project / "none.yaml"), "--write")
    assert result.exit_code == 2
    assert "none.yaml: No such file" in result.stderr


def test_the_help_says_that_side_effects_of_stages_happen():
    text = " ".join(call_here("tune", "--help").stdout.split())
    assert "so do the side effects of its stages" in text
