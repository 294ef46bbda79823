"""pytorch/data's own tests of StatefulDataLoader pass through an adapter, but for those in the table of the docs.

They are not part of this project. Get them with `git clone https://github.com/pytorch/data`, set
`STATEFUL_DATALOADER_TESTS=data/test/stateful_dataloader`, and install `parameterized` and `expecttest`.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SUITE = os.environ.get("STATEFUL_DATALOADER_TESTS", "")
MISSING = [name for name in ("parameterized", "expecttest", "torchdata") if importlib.util.find_spec(name) is None]
TABLE = (ROOT / "docs/reference/stateful-dataloader-tests.md").read_text()
FAILURES = set(re.findall(r"^\| `(\w+)::(\w+)` \|", TABLE, re.MULTILINE))
PASSED = {"test_state_dict.py": 74, "test_sampler.py": 9}


def test_every_failure_has_its_reason():
    assert len(FAILURES) == len(re.findall(r"^\| `\w+::\w+` \| \S.* \|$", TABLE, re.MULTILINE)) == 16


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not SUITE, reason="STATEFUL_DATALOADER_TESTS does not name the folder of pytorch/data's tests")
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_the_suite_fails_only_where_the_docs_say_so(tmp_path):
    plugin = ["-p", "tests.support.stateful_adapter", "-p", "no:cacheprovider", "-W", "ignore", "-c", os.devnull]
    files = [str(Path(SUITE).resolve() / name) for name in PASSED]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", f"--rootdir={tmp_path}", *plugin, *files],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert set(re.findall(r"^FAILED \S+::(\w+)::(\w+)", result.stdout, re.MULTILINE)) == FAILURES, result.stdout
    assert f"{sum(PASSED.values())} passed" in result.stdout, result.stdout
