"""`edit_config`: overrides written into a config file mean the same as on the command line."""

from dataclasses import replace
from pathlib import Path

import pytest

from stagepipe.config import edit_config, load
from stagepipe.core import UsageError
from tests.support.paths import ROOT

STAGES = """\
# what we train on
source: {uses: stagepipe.sources.numbers, with: {count: 3}}   # 0, 1, 2
stages:
  - name: work
    uses: tests.support.stages.same
    workers: 2   # enough
  - {name: more, uses: tests.support.stages.plus, with: {amount: "${vars.amount}"}}
vars: {amount: 1}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(STAGES)
    return path


def written(path: Path, *changes: str) -> str:
    """Write the changes, check that the file means the same as with them, and return its text."""
    wanted = load(path, changes)
    path.write_text(edit_config(path, changes))
    assert replace(load(path), config_sha256="") == replace(wanted, config_sha256="")
    return path.read_text()


def test_kept_overrides_are_in_the_file_and_comments_stay(config):
    text = written(config, "stages.work.workers=4", "stages.more.fuse=true", "window=9")
    assert "    workers: 4   # enough\n" in text
    assert 'with: {amount: "${vars.amount}"}, fuse: true}' in text
    assert text.startswith("# what we train on\n")


def test_a_fused_stage_loses_the_keys_of_a_process(config):
    assert "enough" not in written(config, "stages.work.fuse=true", "stages.work.workers=null")


def test_the_file_is_edited_and_not_the_one_that_it_extends(config, tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text("extends: train.yaml\n# mine\nname: child\n")
    written(child, "stages.more.workers=3", "stages.work.workers=null", "stages.work.fuse=true")
    assert config.read_text() == STAGES
    assert child.read_text().startswith("extends: train.yaml\n# mine\nname: child\nstages:")


def test_overrides_of_the_user_stay_on_the_command_line(config):
    text = edit_config(config, ["stages.work.workers=4"], ["vars.amount=7"])
    assert "amount: 1" in text
    assert "workers: 4" in text


def test_an_edit_that_would_change_another_stage_too_is_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "source: {uses: stagepipe.sources.numbers, with: {count: 3}}\n"
        "stages:\n"
        "  - {name: a, uses: tests.support.stages.plus, with: &arguments {amount: 1}}\n"
        "  - {name: b, uses: tests.support.stages.plus, with: *arguments}\n"
    )
    with pytest.raises(UsageError, match="means the same; nothing was written: set it by hand"):
        edit_config(path, ["stages.a.with.amount=2"])
    with pytest.raises(UsageError, match="`with` is an alias; set it by hand"):
        edit_config(path, ["stages.b.with.amount=2"])


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_each_config_of_the_repository_can_be_edited(path):
    spec = load(path)
    changes = [f"stages.{stage.name}.threads=1" for stage in spec.stages if not stage.fuse]
    changes += [f"stages.{spec.stages[0].name}.workers=3", "window=40"]
    text = edit_config(path, changes)
    comments = [line.partition("#")[2] for line in path.read_text().splitlines() if "#" in line]
    assert comments == [line.partition("#")[2] for line in text.splitlines() if "#" in line]
