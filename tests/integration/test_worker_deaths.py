"""A stage that kills its process at every try: the error names the stage, the item and the cause."""

import time
from typing import Any

import psutil
import pytest

from stagepipe import Pipeline, RunError
from tests.support.pipelines import BAD, pipeline, stage

pytestmark = pytest.mark.timeout(40)
MAX_DELAY_S = 4.0


def run_until_death(config: dict[str, Any]) -> RunError:
    """The error of a run. The error must come, and the run must be closed, soon after the first item."""
    first_item_s = None
    with pytest.raises(RunError) as caught, Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for _ in running:
            first_item_s = first_item_s or time.monotonic()
    assert first_item_s is None or time.monotonic() - first_item_s < MAX_DELAY_S, "a death was noticed too late"
    return caught.value


@pytest.mark.parametrize(
    "uses, cause",
    [
        ("exits", "SystemExit: 3"),
        ("exits_hard", "exited unexpectedly with exit code 3"),
        ("kills_itself", "was killed by SIGKILL"),
        ("segfaults", "was killed by SIGSEGV"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "pipe"])
def test_a_stage_that_ends_its_process(uses, cause, mode):
    bad = stage(f"{BAD}.{uses}", name="bad")
    stages = [stage("image", with_={"size": 80}), bad, stage("same")]
    error = run_until_death(pipeline(*stages, source=50, transport={"mode": mode}))
    assert (error.stage, error.worker) == ("bad", 0)
    assert cause in error.message
    assert "item 5" in error.message
    if uses == "segfaults":
        assert "bad_stages.py" in error.trace
        assert "segfaults" in error.trace


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # filters hold in workers too
@pytest.mark.parametrize(
    "maker, writer",
    [("tests.support.stages.megabyte", "writes_into_its_input"), (f"{BAD}.tensor_image", "writes_into_its_tensor")],
)
def test_a_write_into_a_read_only_tensor_shows_the_line_and_the_fix(maker, writer):
    error = run_until_death(pipeline(stage(maker, name="maker"), stage(f"{BAD}.{writer}", name="writer"), source=4))
    assert error.stage == "writer"
    assert ".mutable=true`" in error.message
    assert f"in {writer}" in error.trace
    fixed = stage(f"{BAD}.{writer}", name="writer", mutable=True)
    with Pipeline(pipeline(stage(maker, name="maker"), fixed, source=4)) as running:
        assert [int(item["image"][0]) for item in running] == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["auto", "pipe"])
def test_closing_between_large_items_does_not_wait_for_a_timeout(mode):
    config = pipeline(
        stage("megabyte"),
        stage("touched"),
        stage("summed", with_={"key": "image"}),
        source=5000,
        transport={"mode": mode},
    )
    with Pipeline(config) as running:
        for number, _ in enumerate(running):
            if number == 5:
                break
        time.sleep(0.3)  # every pipe is full now
        started_s = time.monotonic()
    assert time.monotonic() - started_s < MAX_DELAY_S


@pytest.mark.parametrize("keys", [{"on_error": "skip"}, {"on_error": "skip", "retries": 1}], ids=["skip", "retries"])
def test_an_item_that_breaks_cuda_for_its_process_costs_no_other_item(keys):
    with Pipeline(pipeline(stage(f"{BAD}.breaks_cuda", name="bad", **keys), source=9)) as running:
        assert list(running) == [item for item in range(9) if item != 5]
        (letter,) = running.dead_letters
        assert len(running.report().restarts) == letter.attempts
    assert "ended because CUDA no longer works in its process" in letter.error


def test_an_item_that_breaks_cuda_ends_the_run_with_the_error_of_cuda():
    error = run_until_death(pipeline(stage(f"{BAD}.breaks_cuda", name="bad"), source=9))
    assert "item 5: RuntimeError: CUDA error: device-side assert triggered" in str(error)


def test_a_stage_that_hangs_is_killed():
    config = pipeline(stage(f"{BAD}.hangs"), stage(f"{BAD}.ignores_sigterm"), source=50)
    with Pipeline(config) as running:
        next(iter(running))
        time.sleep(0.2)
        pids = [worker.pid for worker in running._run._supervisor.workers.values()]
    deadline = time.monotonic() + 5  # the fork server, whose children they are, takes their exit codes
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))


def test_a_death_at_an_item_of_an_epoch_that_was_left_costs_no_item_of_the_next(tmp_path):
    dying = stage(
        f"{BAD}.exits_in_first_epoch", name="bad", with_={"folder": str(tmp_path)}, retries=0, on_error="skip"
    )
    with Pipeline(pipeline(dying, source=6)) as running:
        items = iter(running)
        assert next(items) == 0
        while not (tmp_path / "reached").exists():
            time.sleep(0.005)
        items = iter(running)
        (tmp_path / "left").touch()
        assert list(items) == list(range(6))
    assert len(running.report().restarts) == 1


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_row_that_kills_among_rows_that_are_read_together_is_found(tmp_path, on_error):
    rows = ["deadly" if number == 70 else str(number) for number in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["number", *rows]) + "\n")
    source = {"uses": "stagepipe.sources.csv", "fuse": True, "on_error": on_error}
    stages = [{"name": "pass_on", "uses": "tests.support.deadly_rows.pass_on", "fuse": True}]
    with Pipeline({"source": {**source, "with": {"path": str(tmp_path / "rows.csv")}}, "stages": stages}) as running:
        if on_error == "fail":
            with pytest.raises(RunError, match=r"stage source, .*item 70 .*killed by SIGKILL"):
                list(running)
        else:
            assert [row["number"] for row in running] == [row for row in rows if row != "deadly"]
            assert [(letter.item, letter.stage) for letter in running.dead_letters] == [("70", "source")]
