"""Each config in `configs/` and `examples/` has a script beside it that builds the same pipeline in Python."""

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

CONFIGS = sorted(path for folder in ("configs", "examples") for path in (ROOT / folder).rglob("*.yaml"))
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)


@pytest.fixture
def build(monkeypatch):
    """Return the builder of a script, which imports modules beside it."""

    def build(config):
        monkeypatch.syspath_prepend(config.parent)
        return runpy.run_path(str(find_script(config)))["builder"]

    return build


def find_script(config):
    return config.with_name(f"build_{config.stem}.py")


def test_each_config_has_a_script():
    scripts = {path for folder in ("configs", "examples") for path in (ROOT / folder).rglob("build_*.py")}
    assert {find_script(config) for config in CONFIGS} == scripts


@every_config
def test_the_script_and_its_yaml_make_the_spec_of_the_config(config, build, tmp_path):
    builder, spec = build(config), load(config)
    assert comparable(load(builder), config.parent) == comparable(spec)
    path = tmp_path / "config.yaml"
    path.write_text(builder.to_yaml(), encoding="utf-8")
    assert comparable(load(path)) == comparable(spec)


@every_config
def test_both_yield_the_same_items(config, build, demo_folder, monkeypatch):
    monkeypatch.chdir(demo_folder)
    with Pipeline(config, inline=True) as pipeline:
        expected = [plain(batch) for batch in itertools.islice(pipeline, 1)]
    assert [plain(batch) for batch in build(config).take(1)] == expected


def test_a_script_runs_and_prints_the_report(demo_folder):
    done = subprocess.run(
        [sys.executable, ROOT / "configs/build_quickstart.py"],
        cwd=demo_folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart finished" in done.stdout
