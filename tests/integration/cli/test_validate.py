"""`stagepipe validate --determinism`: what it prints, its exit status, and that it leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

CONFIG = """
source: {uses: stagepipe.sources.numbers, with: {count: 400}}
stages:
  - {name: noise, uses: tests.support.random_sources.unseeded}
sink: {uses: stagepipe.sinks.npz, with: {path: out}}
"""


def test_a_stage_that_differs_is_named_with_its_item_and_a_fix(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG, encoding="utf-8")
    command = [str(Path(sys.executable).parent / "stagepipe"), "validate", "--determinism", "c.yaml"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith(
        "stage noise, item 0: the output differs from run to run; draw from `stagepipe.context"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
