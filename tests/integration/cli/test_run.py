"""`stagepipe run` on the command line: exit codes, the report, and what is printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import call_here
from tests.support.paths import ROOT

COMMAND = Path(sys.executable).parent / "stagepipe"
pytestmark = pytest.mark.timeout(60)

CONFIG = """
name: demo
source: {uses: stagepipe.sources.numbers, with: {count: 40}}
stages:
  - {name: make, uses: tests.support.stages.megabyte, workers: 2}
  - {name: touch, uses: tests.support.stages.touched, fuse: true}
  - {name: batch, uses: stagepipe.stages.Batch, with: {size: 4}}
"""
FAILING = """
name: failing
source: {uses: stagepipe.sources.numbers, with: {count: 40}}
stages:
  - {name: good, uses: tests.support.stages.same}
  - {name: bad, uses: tests.support.bad_stages.raises, workers: 2}
"""
SHARES = ("starting", "busy", "starved", "blocked", "overhead")


@pytest.fixture
def stagepipe(tmp_path):
    """Call the command in a temporary folder."""

    def call(*arguments: str, config: str = CONFIG, **variables: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "c.yaml").write_text(config)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        return subprocess.run(
            [str(COMMAND), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, **variables},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    return call


def test_a_run_that_finishes_prints_the_table_and_writes_the_report(stagepipe, tmp_path):
    done = stagepipe("run", "c.yaml", "-v", "--report", "runs/a.json", "--report", "b.json")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for word in ("source", "make", "touch", "batch", "sink"):
        assert word in done.stdout
    report = json.loads((tmp_path / "runs/a.json").read_text())
    assert report == json.loads((tmp_path / "b.json").read_text())
    assert report["schema"] == "stagepipe.report/2"
    run = report["run"]
    assert (run["status"], run["items_in"], run["items_out"], run["samples_out"]) == ("finished", 40, 10, 40)
    assert [stage["name"] for stage in report["stages"]] == ["source", "make", "touch", "batch"]
    for stage in report["stages"]:
        assert sum(stage[share] for share in SHARES) == pytest.approx(1, abs=1e-6)
        assert all(0 <= stage[share] <= 1 for share in SHARES)
    assert [(hop["from"], hop["to"]) for hop in report["hops"]] == [
        ("source", "make"),
        ("make", "touch"),
        ("touch", "batch"),
        ("batch", "sink"),
    ]
    for hop in report["hops"]:
        assert sum(hop["messages"].values()) == (10 if hop["to"] == "sink" else 40)
        assert hop["transport"]["reason"]
    assert report["verdict"]["sentence"]
    assert len(report["config_sha256"]) == 64
    assert report["config_path"] == "c.yaml"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--inline", "--trace", "t.json"), "trace='t.json': an inline run has no worker processes to show"),
        (("--trace", "same.json", "--report", "same.json"), "would write 2 outputs to the same file"),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_the_run(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    called = call_here("run", "c.yaml", *arguments)
    assert called.exit_code == 2
    assert words in called.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_a_report_that_cannot_be_written_hides_no_other(stagepipe, tmp_path):
    done = stagepipe("run", "c.yaml", "--report", "/proc/a.html", "--report", "b.json")
    assert done.returncode == 1
    assert "batch" in done.stdout
    assert done.stderr.endswith("the report /proc/a.html could not be written: No such file or directory\n")
    assert json.loads((tmp_path / "b.json").read_text())["run"]["status"] == "finished"


def test_an_inline_run_reports_as_any_other(stagepipe, tmp_path):
    keys = "report: {json: r.json, html: r.html, trace: t.json, prometheus: '127.0.0.1:0'}"
    done = stagepipe("run", "c.yaml", "--inline", "--report", "b.json", config=f"{CONFIG}{keys}\n")
    assert done.returncode == 0, done.stderr
    assert "demo finished" in done.stdout
    assert "Verdict" in done.stdout
    for key in ("trace", "prometheus"):
        assert f"report.{key}: not written: it shows worker processes" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report == json.loads((tmp_path / "b.json").read_text())
    assert [(stage["name"], stage["items"]) for stage in report["stages"]] == [
        ("source", 40),
        ("make", 40),
        ("touch", 40),
        ("batch", 40),
    ]
    run = report["run"]
    assert (run["status"], run["items_in"], run["items_out"], run["samples_out"]) == ("finished", 40, 10, 40)
    for stage in report["stages"]:
        assert sum(stage[share] for share in SHARES) == pytest.approx(1, abs=1e-6)
    assert {hop["transport"]["mode"] for hop in report["hops"]} == {"local"}
    assert report["verdict"]["kind"] in {"stage", "none"}
    assert report["verdict"]["fix"] == ""
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert not (tmp_path / "t.json").exists()


def test_a_failed_inline_run_says_how_far_it_came(stagepipe):
    done = stagepipe("run", "c.yaml", "--inline", config=FAILING)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "failing failed"
    assert done.stdout.splitlines()[1].startswith("6 items in, 5 out, ")
    assert "stage bad, worker 0, item 5: " in done.stderr


def test_quiet_limit_overrides_and_inline(stagepipe, tmp_path):
    done = stagepipe("run", "c.yaml", "stages.batch.with.size=2", "--limit", "8", "-q", "--report", "r.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    run = json.loads((tmp_path / "r.json").read_text())["run"]
    assert (run["items_in"], run["items_out"], run["samples_out"]) == (8, 4, 8)
    done = stagepipe("run", "c.yaml", "--inline", "--limit", "4")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failing_stage_prints_only_its_exception_and_the_report_is_still_written(stagepipe, tmp_path):
    done = stagepipe("run", "c.yaml", "--report", "r.json", "-q", config=FAILING)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("stage bad, worker ")
    assert lines[0].endswith(", item 5: KeyError: 'wanted'")
    assert lines[-1] == "KeyError: 'wanted'"
    assert 'return numerator["wanted"]' in done.stderr
    assert "stagepipe/" not in done.stderr.replace(str(ROOT), ""), "the traceback has no frames of stagepipe"
    run = json.loads((tmp_path / "r.json").read_text())["run"]
    assert run["status"] == "failed"
    assert "item 5" in run["error"]


def test_a_failed_run_prints_two_lines_and_its_error(stagepipe, tmp_path):
    done = stagepipe("run", "c.yaml", "--report", "r.json", config=FAILING)
    assert done.returncode == 1
    status, facts = done.stdout.splitlines()
    assert status == "failing failed"
    assert "items in" in facts
    assert done.stderr.count("KeyError: 'wanted'") == 2, "the message, and the last line of the traceback"
    assert json.loads((tmp_path / "r.json").read_text())["stages"][0]["name"] == "source"


def test_a_failing_inline_run_prints_the_same_error(stagepipe):
    done = stagepipe("run", "c.yaml", "--inline", "-q", config=FAILING)
    assert done.returncode == 1
    assert done.stderr.startswith("stage bad, worker 0, item 5: KeyError: 'wanted'")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["c.yaml", "stages.make.workers=none"], "workers"),
        (["c.yaml", "--report", "r.txt"], "--report r.txt"),
        (["missing.yaml"], "missing.yaml"),
        (["c.yaml", "--limit", "0"], "limit"),
    ],
)
def test_a_wrong_call_exits_with_2_and_a_reason(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    done = call_here("run", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sink_gets_the_items_and_is_closed(stagepipe, tmp_path):
    sink = "sink: {uses: tests.support.stages.Lines, with: {path: out.txt}}\n"
    numbers = CONFIG.replace("tests.support.stages.megabyte", "tests.support.stages.double").partition(
        "  - {name: touch"
    )[0]
    done = stagepipe("run", "c.yaml", "-q", "--limit", "3", config=numbers + sink)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.txt").read_text() == "0\n2\n4\nclosed\n"


def test_a_failing_sink_is_named(stagepipe):
    config = FAILING.replace("tests.support.bad_stages.raises", "tests.support.stages.same")
    done = stagepipe("run", "c.yaml", "-q", config=config + "sink: {uses: tests.support.stages.failing_sink}\n")
    assert done.returncode == 1
    assert "sink, item 3: OSError: the disk is full" in done.stderr


def test_a_run_works_without_a_writable_cache_folder(stagepipe, tmp_path):
    (tmp_path / "file").write_text("")
    for cache in ("/proc/nowhere", str(tmp_path / "file")):
        done = stagepipe("run", "c.yaml", "-q", "--limit", "2", XDG_CACHE_HOME=cache)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_run_works_without_a_home_folder(stagepipe):
    done = stagepipe("run", "c.yaml", "-q", "--limit", "2", HOME="/nonexistent", XDG_CACHE_HOME="")
    assert (done.returncode, done.stderr) == (0, "")


def test_validate_and_schema(stagepipe, tmp_path):
    done = stagepipe("validate", "c.yaml", "stages.make.workers=3")
    assert done.returncode == 0
    assert done.stdout.startswith("ok: demo:")
    done = stagepipe("validate", "c.yaml", config=CONFIG.replace("workers: 2", "wrkers: 2"))
    assert done.returncode == 2
    assert "c.yaml:5:" in done.stderr
    assert "workers" in done.stderr
    schema = json.loads(stagepipe("schema").stdout)
    assert {"source", "stages"} <= set(schema["properties"])
    assert stagepipe("schema", "--out", "s.json").returncode == 0
    assert json.loads((tmp_path / "s.json").read_text()) == schema


def test_help_imports_nothing_heavy():
    code = "import sys, stagepipe.cli.app; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    heavy = {"numpy", "torch", "zmq", "msgspec", "yaml", "stagepipe.engine", "stagepipe.config"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.slow
def test_without_a_terminal_stderr_gets_a_plain_line_every_ten_seconds(stagepipe):
    slow = CONFIG.replace("tests.support.stages.megabyte, workers: 2", "tests.support.stages.nap, with: {seconds: 0.6}")
    done = stagepipe("run", "c.yaml", config=slow.partition("  - {name: touch")[0])
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 3
    assert lines[0].startswith("stagepipe: 10.")
    assert "of 40 items" in lines[0]
