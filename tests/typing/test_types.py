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
def changed(tmp_path_factory):
    """The first file with a false assertion."""
    path = tmp_path_factory.mktemp("changed") / "changed.py"
    path.write_text(RIGHT.read_text().replace("PipelineBuilder[Image]", "PipelineBuilder[str]", 1))
    return path


@pytest.fixture(scope="module")
def mypy_errors(changed):
    """The mistakes in each of the three files: (line, text). One run, as most of its time is torch's."""
    paths = (RIGHT, WRONG, changed)
    output = run(sys.executable, "-m", "mypy", "--no-error-summary", *map(str, paths))
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", output, re.MULTILINE)
    return {path: [(int(line), text) for name, line, text in found if name.endswith(path.name)] for path in paths}


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


def test_an_assertion_that_does_not_hold_is_found(mypy_errors, changed):
    """The files above are read: a false assertion in one is an error."""
    assert [text.endswith("[assert-type]") for _, text in mypy_errors[changed]] == [True]
