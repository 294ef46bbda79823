"""A damaged state, dead-letter file, report or cache is refused with UsageError, or works like a whole one."""

import json
import subprocess

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from stagepipe import Pipeline, UsageError
from stagepipe.api import StateFile, run_to_sink
from stagepipe.calibration import cache, measurement
from stagepipe.costs import CostCurves
from stagepipe.engine import load_retry_selection
from stagepipe.report import DeadLetter
from stagepipe.torch import Loader
from tests.support.json_mutations import damaged_documents, damaged_files

COUNT = 12
EXAMPLES = 60
CONFIG = {
    "name": "p",
    "source": {"uses": "stagepipe.sources.numbers", "with": {"count": COUNT}},
    "stages": [
        {"name": "neg", "uses": "operator.neg"},
        {"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": 2}},
    ],
}
CURVES = CostCurves.from_points((1, 2, 3), (1, 2, 3), (3, 4, 5))
few_examples = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def _no_code_runs(monkeypatch):
    """A state holds no code; whatever it says, nothing is started."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))


@pytest.fixture(scope="module")
def whole():
    """The items of an epoch, and a state in the middle of one that processes have saved."""
    with Pipeline(CONFIG, inline=True) as pipeline:
        items = [item.tolist() for item in pipeline]
    state = Pipeline(CONFIG, inline=True).state_dict()
    cursor = [[None, 6, None, 0, [], [], []], 3, None, 0, [["neg", [2, 1]]], [[5]], [[[4], [5]]]]
    return items, {**state, "rank0": json.dumps({"epoch": 0, "items": 3, "cursor": cursor})}


def read(pipeline):
    return [item.tolist() for item in pipeline]


def test_a_damaged_state_is_refused_or_yields_the_end_of_an_epoch(whole):
    items, state = whole
    Pipeline(CONFIG, inline=True).load_state_dict(state)

    @few_examples
    @given(damaged_documents(state))
    def check(damaged):
        for open_resumed in (Pipeline, Loader):
            with open_resumed(CONFIG, inline=True) as resumed:
                try:
                    resumed.load_state_dict(damaged)
                except UsageError:
                    continue
                rest = read(resumed)
                assert rest == items[len(items) - len(rest) :]

    check()


@pytest.fixture(scope="module")
def started():
    with Pipeline(CONFIG) as pipeline:
        yield pipeline


def test_workers_go_to_any_accepted_position(started, whole):
    items, state = whole
    numbers = {number for item in items for number in item}

    @few_examples
    @given(damaged_documents(state))
    def check(damaged):
        try:
            started.load_state_dict(damaged)
        except UsageError:
            return
        assert {number for item in read(started) for number in item} <= numbers

    check()


def test_a_damaged_state_file_is_refused_or_resumed(whole, tmp_path):
    _, state = whole
    path = tmp_path / "state.json"

    @few_examples
    @given(damaged_files(state))
    def check(data):
        path.write_bytes(data)
        with Pipeline(CONFIG, inline=True) as pipeline:
            state_file = StateFile(path)
            try:
                is_unfinished = state_file.load(pipeline)
            except UsageError:
                assert path.read_bytes() == data
                return
            if is_unfinished:
                run_to_sink(pipeline, lambda _: None, state_file)

    check()


@pytest.mark.parametrize("as_report", [False, True])
def test_a_damaged_file_of_dead_letters_is_refused_or_selects_items(tmp_path, as_report):
    spec = Pipeline(CONFIG, inline=True).spec
    letter = DeadLetter(
        item="3", stage="neg", error="e", attempts=1, source_items=(3,), source_sha256=spec.source_sha256
    )
    path = tmp_path / "dead.jsonl"
    document = json.loads(msgspec.json.encode(letter))
    document = {"schema": "stagepipe.report/2", "dead_letters": [document]} if as_report else document

    @few_examples
    @given(damaged_files(document))
    def check(data):
        path.write_bytes(data)
        try:
            selection = load_retry_selection(path, spec)
            with Pipeline(CONFIG, inline=True, only=selection.source_items) as pipeline:
                pipeline.set_epoch(selection.epoch)
                assert len([number for item in pipeline for number in item]) == len(selection.source_items)
        except UsageError:
            pass

    check()


def test_a_damaged_cache_of_curves_is_measured_again_or_plans(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measurement, "measure_curves", lambda: CURVES)
    path = cache.save_curves(CURVES, "1")

    @few_examples
    @given(damaged_files(CURVES.to_dict()))
    def check(data):
        path.write_bytes(data)
        curves = cache.load_curves("1")
        assert 0 <= curves.find_crossover_bytes() <= 1 << 53
        assert curves.copied(1 << 20) >= 0
        assert curves.relative_iqr is not None

    check()
