"""A torch that is too old is refused at import, with both versions and the fix."""

import subprocess
import sys
import tomllib

import pytest

from stagepipe.torch import MIN_TORCH_VERSION, require_torch
from tests.support.paths import ROOT


def test_the_minimum_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch>={'.'.join(map(str, MIN_TORCH_VERSION))}" in project["optional-dependencies"]["torch"]


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0+cu124", "2.10.1", "3.0.0a0+git1234", "2.6.0rc1"])
def test_these_are_new_enough(version):
    require_torch(version)


def test_an_older_one_is_refused_at_import():
    script = "import torch; torch.__version__ = '2.5.1'; import stagepipe.torch"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert "ImportError: stagepipe.torch needs torch 2.6 or newer, found 2.5.1; install it with" in result.stderr


@pytest.mark.parametrize("module", ["stagepipe.torch", "stagepipe.stages.model"])
def test_a_missing_torch_is_told_with_its_command(module):
    script = f"import sys; sys.modules['torch'] = None; import {module}"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert "`pip install 'torch>=2.6'`" in result.stderr
