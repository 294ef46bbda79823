"""A command whose stdout or stderr is closed or full runs, or says why on what is left; its exit status is right."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)
COMMAND = str(Path(sys.executable).parent / "stagepipe")
CONFIG = """
name: n
source: {uses: stagepipe.sources.numbers, with: {count: 3}}
stages: [{name: a, uses: operator.neg}]
"""
FULL = "cannot write to stdout: No space left on device"
FAILED = "stage a, worker 0, item 0: NotADirectoryError"


@pytest.mark.parametrize(
    "arguments, status, out, err",
    [
        ("run c.yaml --inline 2>&-", 0, "n finished", ""),
        ("run c.yaml --inline stages.a.uses=os.chdir 2>&-", 1, FAILED, ""),
        ("run missing.yaml 2>&-", 2, "missing.yaml", ""),
        ("run missing.yaml 2>/dev/full", 2, "", ""),
        ("run c.yaml --inline <&- >&- 2>&-", 0, "", ""),
        ("schema >/dev/full", 1, "", FULL),
        ("run c.yaml >/dev/full", 1, "", FULL),
        ("run c.yaml stages.a.uses=os.chdir >/dev/full", 1, "", FAILED),
    ],
)
def test_the_streams_that_are_open_are_used(tmp_path, arguments, status, out, err):
    (tmp_path / "c.yaml").write_text(CONFIG)
    command = f"{COMMAND} {arguments}"
    result = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == status
    for text, words in ((result.stdout, out), (result.stderr, err)):
        assert words in text
        assert "Traceback" not in text
        assert words or not text
