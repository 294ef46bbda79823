"""A worker exits at once: the interpreter's teardown is left out, but what stages wrote is kept."""

import time

from stagepipe import Pipeline
from tests.support.pipelines import pipeline, stage

STAGES = "tests.support.exiting_stages"


def test_a_slow_teardown_of_the_interpreter_is_not_waited_for(caplog):
    with Pipeline(pipeline(stage(f"{STAGES}.tears_down_slowly"), source=3)) as running:
        assert list(running) == [0, 1, 2]
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 4
    assert "did not exit" not in caplog.text


def test_files_atexit_and_destructors_of_a_stage_are_not_lost(tmp_path):
    with Pipeline(pipeline(stage(f"{STAGES}.WritesAtItsEnd", with_={"folder": str(tmp_path)}), source=3)) as running:
        assert list(running) == [0, 1, 2]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "unclosed": "0 1 2 ",
        "atexit": "called",
        "deleted": "called",
    }
