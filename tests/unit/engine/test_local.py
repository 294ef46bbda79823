"""A system limit that is too low is explained, with what to change; an interrupted close is the last one."""

import subprocess
import sys

import pytest

from stagepipe import Pipeline, UsageError
from stagepipe.engine.local import LocalRun
from stagepipe.machine import CpuLoadMeter
from stagepipe.runtime import Supervisor
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


def test_a_report_of_an_open_run_knows_the_memory_and_the_load(monkeypatch):
    monkeypatch.setattr(CpuLoadMeter, "measure_other_cpus", lambda _: 1.25)
    with Pipeline(pipeline(stage("same"), source=20)) as running:
        list(running)
        assert all(each.pss_bytes > 0 for each in running.report().stages)
        assert running._run.make_record().other_cpus == 1.25


def test_a_second_close_after_an_interrupted_one_does_nothing(monkeypatch):
    def interrupt(_: LocalRun) -> None:
        raise KeyboardInterrupt

    started = Pipeline(pipeline(stage("same"))).start()
    with monkeypatch.context() as patch:
        patch.setattr(LocalRun, "_count_record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            started.close()
    started.close()
    with pytest.raises(UsageError, match="no report: closing the run was interrupted"):
        started.report()


def test_a_close_that_is_interrupted_while_workers_stop_leaves_a_report(monkeypatch):
    stop = Supervisor.stop

    def interrupt(supervisor: Supervisor) -> None:
        monkeypatch.setattr(Supervisor, "stop", stop)
        raise KeyboardInterrupt

    started = Pipeline(pipeline(stage("same"))).start()
    items = list(started)
    monkeypatch.setattr(Supervisor, "stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        started.close()
    assert started.report().run.items_out == len(items)
