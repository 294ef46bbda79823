"""The schema in an editor: the real yaml-language-server completes keys and underlines mistakes, from a local file."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stagepipe.starters import StarterKind, write_project
from tests.support.language_server import YamlLanguageServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HEADER = "# yaml-language-server: $schema=schema.json\n"
CONFIG = """\
name: demo
source: {uses: stagepipe.sources.numbers, with: {count: 3}}
stages:
  - name: double
    uses: my_ops.double
"""


def find_server(folder: Path) -> Path:
    """Return the program: $YAML_LANGUAGE_SERVER, one on the path, or one that npm installs into `folder`."""
    installed = os.environ.get("YAML_LANGUAGE_SERVER") or shutil.which("yaml-language-server")
    if installed:
        return Path(installed)
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: it would install yaml-language-server")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), "yaml-language-server"]
    install = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if install.returncode:
        pytest.skip(f"npm cannot install yaml-language-server: {install.stderr.strip().splitlines()[-1:]}")
    return folder / "node_modules" / ".bin" / "yaml-language-server"


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    """The server on a folder that `stagepipe init` has written."""
    folder = tmp_path_factory.mktemp("project")
    write_project(folder, StarterKind.IMAGE)
    with YamlLanguageServer(folder, find_server(tmp_path_factory.mktemp("npm"))) as server:
        yield server


def test_keys_of_a_stage_are_completed_with_their_descriptions(editor):
    found = editor.complete(f"{HEADER}{CONFIG}    |")
    assert {"workers", "timeout", "on_error", "fuse", "cache"} <= found.keys()
    assert "Number of processes." in str(found["workers"])
    assert "window" not in found


def test_keys_of_the_pipeline_are_completed(editor):
    found = editor.complete(f"{HEADER}{CONFIG}|")
    assert {"sink", "window", "memory", "report", "max_restarts"} <= found.keys()


def test_values_of_a_key_are_completed(editor):
    assert {"fail", "skip"} <= editor.complete(f"{HEADER}{CONFIG}    on_error: |").keys()


def test_description_of_a_key_is_shown(editor):
    shown = editor.at_mark("hover", f"{HEADER}{CONFIG}    ret|ries: 2\n")
    assert "Maximum number of retries of a failed item." in str(shown)


def test_wrong_key_is_underlined_at_its_place(editor):
    [problem] = editor.diagnose(f"{HEADER}{CONFIG}    num_workers: 2\n")
    assert "num_workers is not allowed" in problem["message"]
    assert problem["range"]["start"] == {"line": 6, "character": 4}


@pytest.mark.parametrize("line", ["workers: many", "on_error: retry", "fuse: 3"])
def test_wrong_value_is_underlined(editor, line):
    problems = editor.diagnose(f"{HEADER}{CONFIG}    {line}\n")
    assert problems
    assert {problem["range"]["start"]["line"] for problem in problems} == {6}


def test_without_the_first_line_nothing_is_known(editor):
    assert editor.diagnose(f"{CONFIG}    num_workers: 2\n") == []


@pytest.mark.parametrize("kind", list(StarterKind), ids=lambda kind: kind.value)
def test_config_of_init_has_no_problem(editor, kind, tmp_path):
    write_project(tmp_path, kind)
    assert editor.diagnose((tmp_path / "pipeline.yaml").read_text(encoding="utf-8")) == []
