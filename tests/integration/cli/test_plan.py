"""`stagepipe plan`: its output, also for the configs of the repository, and its errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.support.command import call_here
from tests.support.paths import ROOT

CONFIGS = sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("examples/*/*.yaml")])
QUICK = {"quickstart", "thumbnails", "dataset_mixing", "packed_tokens", "video_clips"}
"""The other configs import torch or pandas for seconds in each process; `make test-slow` plans them too."""
COMMAND = Path(sys.executable).parent / "stagepipe"
pytestmark = pytest.mark.timeout(100)

CONFIG = """
name: demo
source: {uses: stagepipe.sources.numbers, with: {count: 400}}
stages:
  - {name: make, uses: tests.support.stages.megabyte}
  - {name: touch, uses: tests.support.stages.touched, fuse: true}
  - {name: batch, uses: stagepipe.stages.Batch, with: {size: 4}}
"""
WAITING = """
name: waiting
source: {uses: stagepipe.sources.numbers, with: {count: 400}}
stages:
  - {name: fetch, uses: tests.support.stages.nap, with: {seconds: 0.02}}
"""


@pytest.fixture
def stagepipe(tmp_path):
    """Run the command in an empty folder."""

    def call(*arguments: str, config: str = CONFIG, **variables: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "c.yaml").write_text(config)
        return subprocess.run(
            [str(COMMAND), *arguments],
            cwd=tmp_path,
            env=environment(**variables),
            capture_output=True,
            encoding="utf-8",
            timeout=180,
            check=False,
        )

    return call


def environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, **variables}


def test_it_prints_stages_hops_reasons_memory_and_advice_within_80_columns(stagepipe):
    done = stagepipe("plan", "c.yaml", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for word in (
        "demo",
        "Stages",
        "+ touch",
        "fused",
        "Hops",
        "a call",
        "shared memory",
        "Memory",
        "Advice",
        "items/s",
    ):
        assert word in done.stdout
    assert "\x1b" not in done.stdout, "plain text where there is no terminal"


def test_json_has_everything(stagepipe):
    done = stagepipe("plan", "c.yaml", "stages.batch.with.size=2", "--json", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\N{MICRO SIGN}s" in done.stdout, "JSON is UTF-8, also for a terminal without it"
    plan = json.loads(done.stdout)
    assert next(iter(plan)) == "schema"
    assert plan["schema"] == "stagepipe.plan/2"
    assert [stage["name"] for stage in plan["stages"]] == ["source", "make", "touch", "batch"]
    assert [(hop["from"], hop["to"], hop["mode"]) for hop in plan["hops"]] == [
        ("source", "make", "auto"),
        ("make", "touch", "local"),
        ("touch", "batch", "auto"),
        ("batch", "sink", "auto"),
    ]
    for hop in plan["hops"]:
        assert hop["reason"]
        if hop["mode"] != "local":
            assert hop["cost"]["as_sent_ns"] > 0
    large = plan["hops"][2]["pieces"][0]
    assert large["mean_bytes"] > 1_000_000
    assert large["mode"] == "shared_memory"
    assert 0 < large["shared_memory_ns"] < large["pipe_ns"]
    assert plan["memory"]["workers_bytes"] > 0
    assert plan["items_per_s"] > 0


def test_a_stage_that_waits_is_advised_to_have_more_workers(stagepipe, tmp_path):
    done = stagepipe("plan", "c.yaml", "--json", config=WAITING)
    [advice, *_] = json.loads(done.stdout)["advice"]
    assert advice["overrides"][0].startswith("stages.fetch.workers=")
    assert advice["items_per_s_after"] > 1.1 * advice["items_per_s_before"]
    assert call_here("validate", str(tmp_path / "c.yaml"), *advice["overrides"]).exit_code == 0


def test_a_stage_that_gets_its_first_item_late_is_measured(stagepipe):
    config = """
name: late
source: {uses: stagepipe.sources.numbers, with: {count: 100000}}
stages:
  - {name: drop, uses: tests.support.stages.drops_first, with: {count: 500}}
  - {name: nap, uses: tests.support.stages.nap, with: {seconds: 0.02}}
"""
    done = stagepipe("plan", "c.yaml", "--json", config=config)
    plan = json.loads(done.stdout)
    assert (plan["unseen"], plan["limited_by"]) == ([], "nap")
    assert 0 < plan["items_per_s"] <= 60, "of the items since, not of all"
    assert any("nap got its first item after 50" in note for note in plan["notes"])
    assert not any("drop got its first item" in note for note in plan["notes"]), "it had as many as the source sent"


def test_the_files_of_a_sink_are_gone_and_its_folder_was_not_made(stagepipe, tmp_path):
    (tmp_path / "temporary").mkdir()
    sink = "sink: {uses: stagepipe.sinks.jsonl, with: {path: out}}"
    config = WAITING.replace("0.02", "0.001") + sink
    done = stagepipe("plan", "c.yaml", "--json", config=config, TMPDIR=str(tmp_path / "temporary"))
    plan = json.loads(done.stdout)
    assert plan["stages"][-1]["name"] == "jsonl"
    assert plan["stages"][-1]["run_ns"] > 0
    assert plan["items_per_s"] > 0
    assert not list((tmp_path / "temporary").iterdir())
    assert not (tmp_path / "out").exists()


def test_graph_prints_mermaid_or_draws_files(stagepipe, tmp_path):
    done = stagepipe("plan", "c.yaml", "--graph")
    assert done.stdout.startswith("flowchart TD\n")
    assert "make + touch" in done.stdout
    done = stagepipe("plan", "c.yaml", "--graph", "p.svg", "p.mmd")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    assert (tmp_path / "p.mmd").read_text().startswith("flowchart TD\n")


def test_run_with_workers_auto_prints_the_number_it_chose(stagepipe):
    config = WAITING.replace("0.02}", "0.02}, workers: auto")
    done = stagepipe("run", "c.yaml", "--limit", "24", config=config)
    assert done.returncode == 0
    [line] = done.stderr.splitlines()
    assert line.startswith("fetch: ")
    assert "workers (auto, 1-" in line
    done = stagepipe("run", "c.yaml", "--limit", "4", "--inline", config=config)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["c.yaml", "stages.make.workers=none"], "workers"),
        (["missing.yaml"], "missing.yaml"),
        (["c.yaml", "--graph", "p.png"], "p.png"),
        (["c.yaml", "--graph", "nowhere/p.svg"], "nowhere"),
        (["c.yaml", "p.svg"], "p.svg"),
    ],
)
def test_a_wrong_call_exits_with_2_and_a_reason(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    done = call_here("plan", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stage_that_raises_is_reported_as_by_run(stagepipe):
    config = CONFIG.replace("tests.support.stages.megabyte", "tests.support.bad_stages.raises").replace(
        "touched", "same"
    )
    done = stagepipe("plan", "c.yaml", config=config)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == "stage make, worker 0, item 5: KeyError: 'wanted'"
    assert done.stderr == stagepipe("run", "c.yaml", "-q", config=config).stderr


@pytest.mark.slow  # imports torchvision; a quick test has the message, and one that `plan` reports what a stage raises
def test_a_transform_that_would_leave_an_array_untouched_is_reported(stagepipe):
    config = """
name: untouched
source: {uses: stagepipe.sources.numbers, with: {count: 40}}
stages:
  - {name: image, uses: tests.support.stages.image, with: {size: 32}}
  - {name: flip, uses: torchvision.transforms.v2.RandomHorizontalFlip, field: image}
"""
    done = stagepipe("plan", "c.yaml", config=config)
    assert done.returncode == 1
    assert "stage flip" in done.stderr
    assert "leaves the NumPy array `image` untouched" in done.stderr
    assert "set `as=tensor`" in done.stderr


def test_a_source_that_can_be_read_only_once_is_reported(stagepipe):
    config = CONFIG.replace("stagepipe.sources.numbers, with: {count: 400}", "itertools.count")
    done = stagepipe("plan", "c.yaml", config=config)
    assert done.returncode == 1
    assert "read only once" in done.stderr


def test_ctrl_c_exits_with_130_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "c.yaml").write_text(WAITING.replace("0.02", "0.5"))
    (tmp_path / "temporary").mkdir()
    variables = environment(TMPDIR=str(tmp_path / "temporary"))
    command = [str(COMMAND), "plan", str(tmp_path / "c.yaml")]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not psutil.Process(process.pid).children() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert "Traceback" not in process.stderr.read()
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem not in QUICK)) for path in CONFIGS],
)
def test_it_plans_every_config_of_the_repository(stagepipe, demo_data, path):
    config = yaml.safe_load(path.read_text())
    present = [variable for variable in config["vars"] if (demo_data / variable).exists()]
    overrides = [f"vars.{variable}={demo_data / variable}" for variable in present]
    if any(stage["name"] == "batch" for stage in config.get("stages", [])):
        overrides.append("stages.batch.with.size=2")
    for _ in range(2):  # on a busy machine the time of the first probe may end during a stage's first call
        done = stagepipe("plan", str(path), *overrides, "--json")
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        if not plan["unseen"]:
            break
    assert all(hop["cost"] for hop in plan["hops"] if hop["mode"] != "local"), "the probe sent messages over each hop"
    for advice in plan["advice"]:
        check = call_here("validate", str(path), *overrides, *advice["overrides"])
        assert check.exit_code == 0, check.stderr
