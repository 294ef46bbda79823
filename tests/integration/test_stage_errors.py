"""Every failure reaches the caller at once, with the stage, worker, item and reason. No failure hangs."""

import re
import time
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.support.pipelines import BAD, batch, pipeline, stage, with_workers
from tests.support.user_errors import BadImage

pytestmark = pytest.mark.timeout(40)
MAX_FAILURE_S = 12.0  # start and stop on a busy machine; a run that must be killed exceeds its stop timeout


def failure(config: dict[str, Any], **keys: Any) -> RunError:
    started_s = time.monotonic()
    with pytest.raises(RunError) as caught, Pipeline(config, **keys) as running:
        for _ in running:
            pass
    assert time.monotonic() - started_s < MAX_FAILURE_S
    return caught.value


@pytest.mark.parametrize("inline", [False, True])
def test_a_stages_exception_names_stage_worker_item_and_keeps_its_traceback(inline):
    config = pipeline(stage("same"), stage(f"{BAD}.raises", name="decode"), stage("double"), source=200)
    error = failure(config if inline else with_workers(config, 2), inline=inline)
    assert (error.stage, error.item) == ("decode", "5")
    assert error.worker in ({0} if inline else {0, 1})
    assert error.message == f"stage decode, worker {error.worker}, item 5: KeyError: 'wanted'"
    assert 'return numerator["wanted"]' in error.trace
    assert error.trace.endswith("KeyError: 'wanted'")
    assert "stagepipe/runtime" not in error.trace, "frames of stagepipe are noise"


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("kind", [BadImage, KeyError])
def test_a_stages_exception_can_be_caught_by_its_own_type(kind, inline):
    source = {"uses": [kind.__name__]}
    config = pipeline(stage("tests.support.user_errors.raise_named", name="decode"), source=source)
    with pytest.raises(kind) as caught, Pipeline(config, inline=inline) as running:
        list(running)
    error = caught.value
    assert isinstance(error, RunError)
    assert (error.stage, error.item, isinstance(error.__cause__, kind)) == ("decode", "0", inline)
    assert str(error).startswith(f"stage decode, worker 0, item 0: {kind.__name__}: ")
    assert "raise ERRORS[name]" in error.trace
    assert (error.trace in str(error)) != inline, "the traceback of `__cause__` has it"


def test_an_exception_while_building_can_be_caught_by_its_own_type():
    error = failure(pipeline(stage(f"{BAD}.NotBuilt", with_={"size": 3})), inline=True)
    assert isinstance(error, TypeError)


def test_the_cause_of_an_exception_is_shown():
    error = failure(pipeline(stage(f"{BAD}.raises_chained")))
    assert "could not read the number" in error.message
    assert "invalid literal for int()" in error.trace
    assert "direct cause" in error.trace


def test_the_failing_stage_is_named_among_busy_neighbours():
    stages = [
        stage("nap", with_={"seconds": 0.001}),
        stage(f"{BAD}.raises_late", name="guilty"),
        stage("same"),
        batch(4),
    ]
    for _ in range(3):
        assert failure(with_workers(pipeline(*stages, source=500), 2)).stage == "guilty"


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    "bad, stage_name, words",
    [
        (
            stage(f"{BAD}.NotBuilt", name="bad", with_={"size": 3}),
            "bad",
            "cannot be built: TypeError: size must be a pair, got 3",
        ),
        (stage(f"{BAD}.breaks_in_the_middle", name="bad"), "bad", r"item 5\.1: ValueError: the second part is broken"),
        (stage(f"{BAD}.too_few", name="bad", batch={"size": 4}), "bad", r"called with \d items and returned \d"),
        (stage(f"{BAD}.stops_iteration", name="bad"), "bad", "item 5: StopIteration"),
        (
            stage(f"{BAD}.forgets_its_return", name="bad", on_error="skip", retries=2),
            "bad",
            "^stage bad returned None for item 5: did you forget `return`?",
        ),
    ],
    ids=["build", "generator", "batch", "StopIteration", "None"],
)
def test_a_stage_that_fails_is_named_with_its_error(bad, stage_name, words, inline):
    error = failure(pipeline(stage("same"), bad, stage("double")), inline=inline)
    assert error.stage == stage_name
    assert re.search(words, error.message), error.message


def test_a_target_that_fails_to_import(tmp_path):
    (tmp_path / "my_broken.py").write_text("import no_such_package\n\ndef f(x):\n    return x\n")
    (tmp_path / "c.yaml").write_text(
        "name: n\nsource: {uses: stagepipe.sources.numbers, with: {count: 3}}\n"
        "stages: [{name: bad, uses: 'my_broken.f'}]\n"
    )
    error = failure(tmp_path / "c.yaml")
    assert error.stage == "bad"
    assert "no_such_package" in error.message


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    "source, words",
    [
        ("BadLength", "item 5: FileNotFoundError: item five is gone"),
        ("bad_stream", "item 5: FileNotFoundError: the stream broke"),
        ("StopsIteration", "StopIteration"),
    ],
)
def test_a_source_that_fails(source, words, inline):
    error = failure(pipeline(stage("same"), source={"uses": f"{BAD}.{source}"}), inline=inline)
    assert error.stage == "source"
    assert words in error.message


@pytest.mark.parametrize("inline", [False, True])
def test_a_batch_of_items_that_do_not_stack(inline):
    error = failure(pipeline(stage(f"{BAD}.shapes_differ"), batch(4)), inline=inline)
    assert error.stage == "batch"
    assert error.item == "5"
    assert "`x`" in error.message
    hint = "resize, crop or pad before Batch, or set `pad: 0` on Batch to fill the shorter ones"
    assert error.message.endswith(hint)
    assert error.trace == "", "all its frames are of stagepipe"


def test_a_result_that_cannot_be_pickled():
    error = failure(pipeline(stage("to_dict"), stage(f"{BAD}.unpicklable_field", name="bad"), stage("same")))
    assert (error.stage, error.item) == ("bad", "5")
    assert (
        "cannot be pickled for the next process: inner.lock (_thread.lock): TypeError: cannot pickle" in error.message
    )
    assert error.trace == ""


@pytest.mark.parametrize("function", ["writes_into_its_array", "writes_out"])
def test_a_write_into_a_read_only_input_gets_a_hint(function):
    error = failure(pipeline(stage("megabyte", name="made"), stage(f"{BAD}.{function}", name="bad")))
    assert error.stage == "bad"
    assert "read-only" in error.message
    assert error.message.endswith("copy it, or set `stages.bad.mutable=true`")
    fused = stage(f"{BAD}.{function}", name="bad", fuse=True)
    assert failure(pipeline(stage("megabyte"), stage("same", name="head"), fused)).message.endswith(
        "`stages.head.mutable=true`"
    )


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    "source", [{"uses": "stagepipe.sources.files", "with": {"glob": "/no/such/*"}}, {"uses": "no_such_module_at_all:f"}]
)
def test_a_stage_that_cannot_be_built_shows_no_frames_of_stagepipe(source, inline, monkeypatch):
    monkeypatch.setattr("stagepipe.config.target_checks.TargetChecker.check_config", lambda *_: [])
    error = failure(pipeline(stage("same"), source=source), inline=inline)
    assert error.stage == "source"
    assert error.message.startswith("stage source, worker 0: cannot be built: ")
    assert "TargetError" not in error.message
    assert error.trace == ""


def test_breakpoint_in_a_worker_suggests_inline():
    error = failure(pipeline(stage(f"{BAD}.stops_for_the_debugger", name="bad")))
    assert "item 5: RuntimeError: breakpoint() in a worker process has no terminal; run with --inline" in error.message


@pytest.mark.usefixtures("own_servers")
def test_a_debugger_chosen_by_the_user_is_kept(monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    with Pipeline(pipeline(stage(f"{BAD}.stops_for_the_debugger"))) as running:
        assert len(list(running)) == 20


@pytest.mark.parametrize("reader", ["stage", "caller"])
def test_an_item_that_cannot_be_unpickled_names_its_receiver(reader):
    readers = [stage("same", name="reader")] if reader == "stage" else []
    error = failure(pipeline(stage(f"{BAD}.returns_what_cannot_be_unpickled", name="maker"), *readers))
    assert "unpickling refused: always" in str(error)
    assert error.stage == ("reader" if reader == "stage" else "sink")


def test_a_keyboard_interrupt_raised_by_a_stage_is_its_failure():
    assert failure(pipeline(stage(f"{BAD}.keyboard_interrupt", name="bad"))).stage == "bad"


def test_iterating_after_an_error_repeats_it_and_close_still_works():
    with Pipeline(pipeline(stage(f"{BAD}.raises", name="bad"))) as running:
        for _ in range(2):
            with pytest.raises(RunError, match="item 5"):
                list(running)
        report = running.report()
    assert report.run.status == "failed"
    assert "item 5" in report.run.error


def test_an_item_larger_than_the_memory_is_refused_with_its_stage():
    error = failure(pipeline(stage("same"), stage(f"{BAD}.one_that_is_too_large", name="maker"), memory="16MiB"))
    assert (error.stage, error.item) == ("maker", "5")
    assert "`memory`" in error.message
