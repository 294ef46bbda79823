"""Each config in `configs/` has a script beside it that builds the same pipeline in Python, and runs it."""

import itertools
import os
import runpy
import subprocess
import sys

import pytest

from stagepipe import Pipeline
from stagepipe.config import load
from tests.support.paths import ROOT
from tests.support.pipelines import plain
from tests.support.specs import comparable

FOLDER = ROOT / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the images and texts of the demo in `data/`."""
    folder = tmp_path_factory.mktemp("root")
    runpy.run_path(str(ROOT / "scripts/make_images.py"))["make"](folder / "data/images", 22, 17)
    tokenizer = runpy.run_path(str(ROOT / "scripts/make_tokenizer.py"))
    texts = tokenizer["write_texts"](folder / "data/text/texts")
    tokenizer["train"](texts, folder / "data/text/tokenizer.json")
    return folder


@pytest.fixture
def build(monkeypatch):
    """Return the builder of a script, which imports modules beside it."""
    monkeypatch.syspath_prepend(FOLDER)
    return lambda name: runpy.run_path(str(FOLDER / f"build_{name}.py"))["builder"]


def test_each_config_has_a_script():
    assert [f"build_{name}" for name in NAMES] == sorted(path.stem for path in FOLDER.glob("build_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_the_script_makes_the_spec_of_the_config(name, build):
    assert comparable(load(build(name)), FOLDER) == comparable(load(FOLDER / f"{name}.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_the_yaml_of_the_script_makes_the_spec_of_the_config(name, build, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(build(name).to_yaml(), encoding="utf-8")
    assert comparable(load(path)) == comparable(load(FOLDER / f"{name}.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_both_yield_the_same_items(name, build, data, monkeypatch):
    monkeypatch.chdir(data)
    with Pipeline(FOLDER / f"{name}.yaml", inline=True) as pipeline:
        expected = [plain(batch) for batch in itertools.islice(pipeline, 1)]
    assert [plain(batch) for batch in build(name).take(1)] == expected


def test_a_script_runs_and_prints_the_report(data):
    done = subprocess.run(
        [sys.executable, FOLDER / "build_quickstart.py"],
        cwd=data,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart finished" in done.stdout
