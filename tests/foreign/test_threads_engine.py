"""An engine outside stagepipe has what configs, pipelines and reports need. `test_engine_contract` runs it too."""

import threading

import pytest

from stagepipe import Pipeline, RunError, UsageError
from stagepipe.api import run_to_sink
from stagepipe.config import build_json_schema, load
from stagepipe.core import ConfigError
from stagepipe.report import from_json, render_report, to_json
from stagepipe.spec import register_engine
from tests.foreign.threads_engine import ThreadsEngine
from tests.support.bad_stages import BAD_ITEM
from tests.support.paths import ROOT
from tests.support.pipelines import BAD, batch, pipeline, shuffle, stage


@pytest.fixture(autouse=True)
def threads_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test: other tests compare the schema with all engines."""
    monkeypatch.setattr("stagepipe.spec._engines", {})
    register_engine(ThreadsEngine())


def threads(*stages, **keys):
    return pipeline(*stages, engine="threads", **keys)


def test_the_quickstart_runs_to_a_report(demo_data):
    with Pipeline(
        ROOT / "configs/quickstart.yaml", ["engine=threads", f"vars.images={demo_data / 'images'}"]
    ) as running:
        run_to_sink(running, lambda _: None)
    report = running.report()
    assert (report.run.status, report.run.items_in) == ("finished", len(list((demo_data / "images").rglob("*.jpg"))))
    assert from_json(to_json(report)) == report
    assert render_report(report)
    assert [found.name for found in report.stages if found.items] == [found.name for found in report.stages]


def test_each_process_of_the_plan_is_a_thread_and_none_is_left():
    before = threading.active_count()
    with Pipeline(threads(stage("double"), stage("same"), batch(4), source=500)) as running:
        items = iter(running)
        next(items)
        assert threading.active_count() == before + 4
    assert threading.active_count() == before


def test_a_state_resumes_by_computing_the_epoch_again():
    config = threads(stage("double"), shuffle(5), seed=3)
    with Pipeline(config) as running:
        items = iter(running)
        first = [next(items) for _ in range(7)]
        state = running.state_dict()
        rest = list(items)
    with Pipeline(config) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == rest
    assert sorted(first + rest) == [2 * n for n in range(20)]


def test_an_epoch_that_was_broken_off_leaves_nothing_to_the_next():
    with Pipeline(threads(stage("double"), batch(3))) as running:
        next(iter(running))
        assert list(next(iter(running))) == [0, 2, 4]


def test_an_error_names_stage_and_item():
    with Pipeline(threads(stage(f"{BAD}.raises"), source=100)) as running:
        with pytest.raises(RunError, match=f"stage raises, worker 0, item {BAD_ITEM}: KeyError"):
            list(running)
        assert running.report().run.status == "failed"


def test_configs_know_its_name_and_the_keys_that_it_refuses(tmp_path):
    assert "threads" in str(build_json_schema()["properties"]["engine"])
    path = tmp_path / "p.yaml"
    path.write_text("source: {uses: stagepipe.sources.numbers}\nstages: [{name: a, uses: builtins.abs, timeout: 3s}]\n")
    assert load(path, []).engine.kind == "local"
    with pytest.raises(ConfigError, match="a stage cannot have `timeout`: a thread cannot be ended"):
        load(path, ["engine=threads"])
    with pytest.raises(ConfigError, match="did you mean `threads`"):
        load(path, ["engine=thread"])


def test_unsupported_features_are_refused_by_name():
    with pytest.raises(UsageError, match=r"trace='t.json': not with `engine: threads`; run with `engine=local`"):
        Pipeline(threads(stage("double")), trace="t.json")
    with (
        Pipeline(threads(stage("double"))) as running,
        pytest.raises(UsageError, match="a threads pipeline has no memory to share"),
    ):
        running.cancel_epoch()
