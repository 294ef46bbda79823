"""`stagepipe run` writes workers' output to stderr with their names; with `--log-json` every line is JSON."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

COMMAND = Path(sys.executable).parent / "stagepipe"
pytestmark = pytest.mark.timeout(60)
CONFIG = """
name: talking
source: {uses: stagepipe.sources.numbers, with: {count: 8}}
stages:
  - {name: talk, uses: tests.support.printing_stages.STAGE}
  - {name: bad, uses: tests.support.bad_stages.raises}
"""


def run(folder: Path, stage: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "c.yaml").write_text(CONFIG.replace("STAGE", stage))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [str(COMMAND), "run", "c.yaml", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_of_stderr_is_json_with_stage_worker_item_level_and_logger(tmp_path):
    done = run(tmp_path, "logs", "--log-json")
    assert done.returncode == 1
    found = parsed(done.stderr)
    first, second, last = found[0], found[1], found[-1]
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    origin = {"stage": "talk", "worker": 0, "item": "0", "logger": "talking"}
    assert first == {"level": "WARNING", **origin, "message": "number 0"}
    assert second["level"] == "ERROR"
    assert second["message"].endswith("KeyError: 'key'")
    assert (last["level"], last["stage"], last["logger"]) == ("ERROR", None, "stagepipe")
    assert last["message"].startswith("stage bad, worker 0, item 5: KeyError: 'wanted'")


def test_printed_lines_are_json_and_a_limit_ends_before_the_error(tmp_path):
    done = run(tmp_path, "says", "--log-json", "--limit", "1")
    assert done.returncode == 0
    found = [line for line in parsed(done.stderr) if line["logger"] is None]
    assert [line["message"] for line in found][:2] == ["printed 0", "on stderr 0"]
    assert {(line["level"], line["stage"], line["worker"]) for line in found} == {("INFO", "talk", 0)}


def test_a_wrong_config_is_reported_as_json_with_its_exit_status(tmp_path):
    done = run(tmp_path, "logs", "--log-json", "stages.talk.wrkers=2")
    assert done.returncode == 2
    assert {line["level"] for line in parsed(done.stderr)} == {"ERROR"}


def test_without_log_json_the_lines_have_names_and_come_before_the_error(tmp_path):
    done = run(tmp_path, "logs", "-q")
    lines = done.stderr.splitlines()
    assert lines[0] == "talk/0: WARNING talking: number 0"
    error = lines.index("stage bad, worker 0, item 5: KeyError: 'wanted'")
    assert not any(line.startswith("talk/0") for line in lines[error:])
    assert done.stdout == ""
