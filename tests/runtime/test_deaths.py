"""A stage that ends its own process, each time it is tried: the run ends with its name, the item and the cause."""

import os
import time
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.zoo.pipelines import BAD, pipeline, stage

pytestmark = pytest.mark.timeout(40)
AT_ONCE_S = 4.0


def death(config: dict[str, Any]) -> RunError:
    """The error; and it came, and all was cleared away, soon after the first item."""
    began = None
    with pytest.raises(RunError) as caught, Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for _ in running:
            began = began or time.monotonic()
    assert began is None or time.monotonic() - began < AT_ONCE_S, "a death was noticed too late"
    return caught.value


@pytest.mark.parametrize(
    "uses, cause",
    [
        ("exits", "SystemExit: 3"),
        ("exits_hard", "ended by itself with exit code 3"),
        ("kills_itself", "was killed by SIGKILL"),
        ("segfaults", "was killed by SIGSEGV"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "pipe"])
def test_a_stage_that_ends_its_process(uses, cause, mode):
    bad = stage(f"{BAD}.{uses}", name="bad")
    error = death(pipeline(stage("image", with_={"size": 80}), bad, stage("same"), source=50, transport={"mode": mode}))
    assert (error.stage, error.worker) == ("bad", 0)
    assert cause in error.message
    assert "item 5" in error.message
    if uses == "segfaults":
        assert "bad.py" in error.trace
        assert "segfaults" in error.trace


@pytest.mark.parametrize(
    "maker, writer",
    [("tests.zoo.stages.megabyte", "writes_into_its_input"), (f"{BAD}.tensor_image", "writes_into_its_tensor")],
)
def test_a_write_into_a_read_only_tensor_shows_the_line_and_the_mend(maker, writer):
    error = death(pipeline(stage(maker, name="maker"), stage(f"{BAD}.{writer}", name="writer"), source=4))
    assert error.stage == "writer"
    assert "`mutable: true`" in error.message
    assert f"in {writer}" in error.trace
    mended = stage(f"{BAD}.{writer}", name="writer", mutable=True)
    with Pipeline(pipeline(stage(maker, name="maker"), mended, source=4)) as running:
        assert [int(item["image"][0]) for item in running] == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["auto", "pipe"])
def test_closing_in_the_middle_of_large_items_does_not_wait_for_a_time_out(mode):
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
        began = time.monotonic()
    assert time.monotonic() - began < AT_ONCE_S


def test_a_stage_that_hangs_is_ended_by_force():
    config = pipeline(stage(f"{BAD}.hangs"), stage(f"{BAD}.ignores_sigterm"), source=50)
    with Pipeline(config) as running:
        next(iter(running))
        time.sleep(0.2)
        workers = [worker.pid for worker in running._run._supervisor.workers.values()]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)  # noqa: PTH110
