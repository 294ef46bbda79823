"""An iteration whose pipeline another thread closes, or the interpreter's exit, ends without a transport's error."""

import subprocess
import sys
import threading

from stagepipe import Pipeline, UsageError
from tests.support.paths import ROOT

CONFIG = {"source": {"uses": "itertools.count"}, "stages": [{"name": "neg", "uses": "operator.neg"}]}
SCRIPT = f"""
import threading
from stagepipe import Pipeline

pipeline = Pipeline({CONFIG})
has_started = threading.Event()

def iterate():
    for _ in pipeline:
        has_started.set()

threading.Thread(target=iterate, daemon=True).start()
assert has_started.wait(30)
"""


def test_a_daemon_thread_that_iterates_at_the_exit_prints_nothing():
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_thread_that_iterates_is_told_of_the_close():
    pipeline = Pipeline(CONFIG)
    has_started, errors = threading.Event(), []

    def iterate():
        try:
            for _ in pipeline:
                has_started.set()
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=iterate)
    with pipeline:
        thread.start()
        assert has_started.wait(30)
    thread.join(30)
    assert not thread.is_alive()
    assert errors[0].startswith("this pipeline")
