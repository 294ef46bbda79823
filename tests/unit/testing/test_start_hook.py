"""The start hook reaches the specs of all workers, once each, and nothing else."""

import pytest

from stagepipe import Pipeline, RunError
from stagepipe.runtime import WORKER_START_HOOK
from stagepipe.testing.crash_points import worker_start_hook
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(60)


def record_start(spec):
    """The hook of these tests: append the worker's name to the file `start_hook_argument`."""
    with open(spec.start_hook_argument, "a") as file:  # noqa: PTH123 - O_APPEND: a line is written whole
        file.write(f"{spec.plan.name}/{spec.worker}\n")


def test_each_worker_calls_the_hook_once_with_its_spec(tmp_path):
    path = tmp_path / "starts"
    with (
        worker_start_hook("tests.unit.testing.test_start_hook:record_start", str(path)),
        Pipeline(pipeline(stage("double", workers=2), source=5)) as running,
    ):
        assert list(running) == [0, 2, 4, 6, 8]
    assert sorted(path.read_text().split()) == ["double/0", "double/1", "source/0"]


def test_a_hook_that_cannot_be_imported_ends_the_run_and_its_name_is_shown(capfd):
    config = pipeline(stage("double"), source=5)
    with (
        worker_start_hook("tests.no_such_module:hook"),
        pytest.raises(RunError, match="exit code 1"),
        Pipeline(config) as running,
    ):
        list(running)
    assert "No module named 'tests.no_such_module'" in capfd.readouterr().err


def test_the_inner_hook_replaces_the_outer_one_until_it_ends():
    with worker_start_hook("outer:hook", "1"):
        with worker_start_hook("inner:hook"):
            assert (WORKER_START_HOOK.target, WORKER_START_HOOK.argument) == ("inner:hook", "")
        assert (WORKER_START_HOOK.target, WORKER_START_HOOK.argument) == ("outer:hook", "1")
    assert WORKER_START_HOOK.target is None
