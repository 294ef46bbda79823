"""mypy and pyright infer the builder's types from a user's side, and refuse wrong uses where they are written."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(300)
FOLDER = Path(__file__).parent
RIGHT, WRONG = FOLDER / "right_uses.py", FOLDER / "wrong_uses.py"
WRONG_LINES = {number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if line.endswith("# wrong")}


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False).stdout


@pytest.fixture(scope="module")
def mypy_errors():
    """The mistakes in each of the two files: (line, text)."""
    output = run(sys.executable, "-m", "mypy", "--no-error-summary", str(RIGHT), str(WRONG))
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", output, re.MULTILINE)
    return {
        path: [(int(line), text) for name, line, text in found if name.endswith(path.name)] for path in (RIGHT, WRONG)
    }


@pytest.fixture(scope="module")
def pyright_errors(tmp_path_factory):
    config = tmp_path_factory.mktemp("pyright") / "pyrightconfig.json"
    settings = {"include": [str(RIGHT), str(WRONG)], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    config.write_text(json.dumps(settings))
    pyright = Path(sys.executable).parent / "basedpyright"
    output = run(pyright, "--project", str(config), "--pythonpath", sys.executable, "--outputjson")
    found = json.loads(output)["generalDiagnostics"]
    assert all(error["file"] in {str(RIGHT), str(WRONG)} for error in found)
    return {
        path: [(error["range"]["start"]["line"] + 1, error["message"]) for error in found if error["file"] == str(path)]
        for path in (RIGHT, WRONG)
    }


@pytest.mark.parametrize("checker", ["mypy_errors", "pyright_errors"])
def test_right_uses_have_the_types_that_they_assert(checker, request):
    assert request.getfixturevalue(checker)[RIGHT] == []


@pytest.mark.parametrize("checker", ["mypy_errors", "pyright_errors"])
def test_each_wrong_use_is_refused_and_nothing_else(checker, request):
    assert len(WRONG_LINES) > 30
    assert {line for line, _ in request.getfixturevalue(checker)[WRONG]} == WRONG_LINES


def test_an_assertion_that_does_not_hold_is_found(tmp_path):
    """The files above are read: a false assertion in one is an error."""
    text = RIGHT.read_text().replace("PipelineBuilder[Image]", "PipelineBuilder[str]", 1)
    changed = tmp_path / "changed.py"
    changed.write_text(text)
    assert "assert-type" in run(sys.executable, "-m", "mypy", str(changed))
