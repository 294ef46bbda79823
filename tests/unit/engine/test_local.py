"""A system limit that is too low is explained, with what to change."""

import subprocess
import sys

import pytest

from tests.support.pipelines import pipeline, stage

SCRIPT = """
import resource
from stagepipe import Pipeline, UsageError
resource.setrlimit(resource.RLIMIT_{limit}, ({value}, resource.getrlimit(resource.RLIMIT_{limit})[1]))
try:
    with Pipeline({config!r}) as running:
        list(running)
except UsageError as error:
    print(error)
"""


@pytest.mark.timeout(60)
def test_too_many_open_files():
    config = pipeline(stage("same", workers=40))
    script = SCRIPT.format(limit="NOFILE", value=60, config=config)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the run cannot start: 41 workers need 455 file descriptors, but only ")
    assert "ulimit -n" in done.stdout
