"""`stagepipe init`: each kind of project runs as it is written, and nothing of the user's is overwritten."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stagepipe.starters import StarterKind
from tests.support.command import call_here

FILES = {"pipeline.yaml", "my_ops.py", "make_data.py", "test_my_ops.py", "schema.json"}

USE_PROJECT = """
import sys, make_data, pytest
make_data.main()
assert pytest.main(["-q", "-p", "no:cacheprovider"]) == 0, "the tests of the project fail"
from stagepipe.cli import main
sys.argv = ["stagepipe", "run", "pipeline.yaml"]
main()
"""


def read_batches(folder):
    return [len(np.load(path)["label"]) for path in sorted(folder.glob("batches/*.npz"))]


def read_sequences(folder):
    return [np.load(path).shape for path in sorted(folder.glob("sequences/*.npy"))]


def read_rows(folder):
    lines = [line for path in sorted(folder.glob("rows/*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "kind",
    [StarterKind.IMAGE, StarterKind.TABLE, pytest.param(StarterKind.TEXT, marks=pytest.mark.slow)],
    ids=lambda kind: kind.value,
)
def test_project_of_each_kind_runs_and_draws_a_report(kind, tmp_path):
    folder = tmp_path / "my project"
    called = call_here("init", str(folder), "--kind", kind.value, "--items", "70")
    assert called.exit_code == 0, called.stderr
    assert {path.name for path in folder.iterdir()} == FILES
    assert f"cd '{folder}'" in called.stdout
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", USE_PROJECT]
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Verdict" in run.stdout
    assert "wrote runs/report.html" in run.stderr
    page = (folder / "runs" / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("my-project", "Verdict"))
    if kind is StarterKind.IMAGE:
        assert read_batches(folder) == [32, 32, 6]
    elif kind is StarterKind.TEXT:
        [(rows, length)] = read_sequences(folder)
        assert rows > 20
        assert length == 256
    else:
        rows = read_rows(folder)
        assert 50 < len(rows) < 70
        assert {"sensor", "celsius", "dew_point"} <= rows[0].keys()


@pytest.mark.parametrize("kind", list(StarterKind), ids=lambda kind: kind.value)
def test_project_validates_and_is_formatted(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call_here("init", "--kind", kind.value).exit_code == 0
    assert call_here("validate", "pipeline.yaml").exit_code == 0
    assert Path("pipeline.yaml").read_text().startswith("# yaml-language-server: $schema=schema.json\n")
    assert json.loads(Path("schema.json").read_text()) == json.loads(call_here("schema").stdout)
    left_over = [path for path in tmp_path.iterdir() if "@" in path.read_text() and path.name != "schema.json"]
    assert left_over == []
    subprocess.run([sys.executable, "-m", "ruff", "format", "--isolated", "--check", "."], check=True, timeout=60)


def test_own_files_are_kept_without_force(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_ops.py").write_text("mine = 1\n")
    Path("notes.txt").write_text("mine\n")
    called = call_here("init")
    assert called.exit_code == 2
    assert "my_ops.py is there already; name another folder, or overwrite with --force" in called.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"my_ops.py", "notes.txt"}
    assert call_here("init", "--force").exit_code == 0
    assert "mine" not in Path("my_ops.py").read_text()
    assert Path("notes.txt").read_text() == "mine\n"


def test_in_this_folder_no_cd_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "cd " not in call_here("init", "--kind", "text").stdout


@pytest.mark.parametrize(
    "arguments", [("file.txt",), ("file.txt/inner",), ("x", "--kind", "sound"), ("x", "--items", "0")]
)
def test_wrong_calls_exit_2_without_a_traceback(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("")
    called = call_here("init", *arguments)
    assert called.exit_code == 2
    assert "Traceback" not in called.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("name", ["2026", "true", "1e3"])
def test_folder_named_like_a_number_validates(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call_here("init", name).exit_code == 0
    monkeypatch.chdir(tmp_path / name)
    assert call_here("validate", "pipeline.yaml").exit_code == 0


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_ops.py").mkdir()
    called = call_here("init", "--force")
    assert called.exit_code == 2
    assert "my_ops.py: not a file" in called.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["my_ops.py"]


def test_a_link_to_a_missing_file_is_kept(tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "my_ops.py").symlink_to(tmp_path / "outside.py")
    monkeypatch.chdir(project)
    assert call_here("init").exit_code == 2
    assert not (tmp_path / "outside.py").exists()


def test_a_write_that_fails_leaves_no_part_of_a_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = []
    write_text = Path.write_text

    def write_two(path, *arguments, **options):
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(path)
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", write_two)
    called = call_here("init")
    assert called.exit_code == 2
    assert "No space left on device" in called.stderr
    assert len(written) == 2
    assert list(tmp_path.iterdir()) == []
