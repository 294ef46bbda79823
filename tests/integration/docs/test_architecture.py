"""The contributor pages and workflows name what exists: folders, layers, make targets."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
assert len(WORKFLOWS) >= 3
LONG_TARGETS = ("test-slow", "chaos", "kills", "soak", "verdicts")
WITH_MAKE_TARGETS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WORKFLOWS]


def layers(contract: str) -> list[str]:
    """The layers of an import-linter contract, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    lines = next(each["layers"] for each in contracts if each["name"] == contract)
    return [name.strip() for line in lines for name in line.split("|")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("contract, folder", [("Layers", "stagepipe"), ("Layers of runtime", "stagepipe/runtime")])
def test_the_folder_map_lists_every_layer(contract: str, folder: str):
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    listed = re.findall(rf"\]\(\.\./{folder}/(\w+)(?:\.py)?\)", page.partition("### Import rules")[0])
    assert sorted(listed) == sorted(layers(contract))


@pytest.mark.parametrize("page", WITH_MAKE_TARGETS, ids=lambda path: path.name)
def test_every_make_target_that_is_named_exists(page: Path):
    named = set(re.findall(r"(?:`|run: |^ *)make ([a-z-]+)", page.read_text(), re.MULTILINE))
    matrix = re.search(r"target: (\[.*\])", page.read_text())
    named |= {target.split()[0] for target in yaml.safe_load(matrix.group(1))} if matrix else set()
    assert named
    assert named <= make_targets()


@pytest.mark.parametrize("name", ["nightly", "weekly"])
def test_a_scheduled_job_fails_when_make_fails_and_keeps_its_log(name: str):
    (job,) = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"].values()
    assert job["timeout-minutes"] <= 120
    make, keep = job["steps"][-2:]
    assert make["shell"] == "bash", "with it, a pipe fails when make fails"
    log = make["run"].rpartition("| tee ")[2].strip()
    assert (keep["if"], keep["with"]["path"]) == ("always()", log)


def test_every_night_the_long_tests_run():
    job = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]["nightly"]
    assert {target.split()[0] for target in job["strategy"]["matrix"]["target"]} == {*LONG_TARGETS}


def test_the_weekly_check_compares_the_cost_of_items_with_the_week_before():
    make = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())["jobs"]["bench-check"]["steps"][2]["run"]
    assert "make bench-check" in make
    assert '--before="1 week ago"' in make


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / ".pre-commit-config.yaml"], ids=lambda path: path.name)
def test_a_workflow_is_yaml_and_pins_its_actions_to_a_major_version(path: Path):
    loaded = yaml.safe_load(path.read_text())
    assert "jobs" in loaded or "repos" in loaded
    for action in re.findall(r"uses: (.*)", path.read_text()):
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action), action
