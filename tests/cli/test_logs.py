"""`stagepipe run` and what workers say: on stderr, named; with `--log-json` as JSON, every line of it."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "stagepipe"
pytestmark = pytest.mark.timeout(60)
CONFIG = """
name: talking
source: {uses: stagepipe.sources.numbers, with: {count: 8}}
stages:
  - {name: talk, uses: tests.zoo.talking.STAGE}
  - {name: bad, uses: tests.zoo.bad.raises}
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
    named = {"stage": "talk", "worker": 0, "item": "0", "logger": "talking"}
    assert first == {"level": "WARNING", **named, "message": "number 0"}
    assert second["level"] == "ERROR"
    assert second["message"].endswith("KeyError: 'key'")
    assert (last["level"], last["stage"], last["logger"]) == ("ERROR", None, "stagepipe")
    assert last["message"].startswith("stage bad, worker 0, item 5: KeyError: 'wanted'")


def test_printed_lines_are_json_too_and_a_limit_ends_before_the_error(tmp_path):
    done = run(tmp_path, "says", "--log-json", "--limit", "1")
    assert done.returncode == 0
    found = [each for each in parsed(done.stderr) if each["logger"] is None]
    assert [each["message"] for each in found][:2] == ["printed 0", "on stderr 0"]
    assert {(each["level"], each["stage"], each["worker"]) for each in found} == {("INFO", "talk", 0)}


def test_a_wrong_config_is_told_as_json_with_its_exit_status(tmp_path):
    done = run(tmp_path, "logs", "--log-json", "stages.talk.wrkers=2")
    assert done.returncode == 2
    assert {each["level"] for each in parsed(done.stderr)} == {"ERROR"}


def test_without_it_the_lines_are_named_and_come_before_the_error(tmp_path):
    done = run(tmp_path, "logs", "-q")
    lines = done.stderr.splitlines()
    assert lines[0] == "talk/0: WARNING talking: number 0"
    error = lines.index("stage bad, worker 0, item 5: KeyError: 'wanted'")
    assert not any(line.startswith("talk/0") for line in lines[error:])
    assert done.stdout == ""
