"""The costs that a probe has measured: kept for a day by config and code; a file that does not fit counts as none."""

import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from stagepipe import Pipeline, from_source
from stagepipe.core import KeptFiles
from stagepipe.engine.cost_cache import CostCache
from stagepipe.forecast import add_layout_rules
from tests.support.pipelines import pipeline, stage
from tests.unit.forecast.chains import chain, process

CODE = "def double(item):\n    return 2 * item\n"
COSTS = chain(process("source", 10), process("double", 100))


@pytest.fixture(autouse=True)
def _own_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("stagepipe.engine.cost_cache._KEPT", KeptFiles(str(tmp_path / "cache" / "costs")))


@pytest.fixture
def code(tmp_path):
    file = tmp_path / "ops.py"
    file.write_text(CODE)
    return file


def cache(code, source=40, seed=0, **keys):
    running = Pipeline(pipeline(stage(f"{code}:double", name="double", **keys), source=source, seed=seed))
    return CostCache(running.spec, running._plan_spec(running.spec))


def kept_file(code):
    return next((code.parent / "cache" / "costs").iterdir())


def test_costs_are_kept_for_any_workers_and_only_for_their_owner(code):
    cache(code, workers="auto").save(COSTS)
    for keys in ({"fuse": "auto"}, {"workers": 3}, {}):
        kept = cache(code, **keys).load()
        assert kept is not None
        assert kept.costs == COSTS
        assert 0 <= time.time() - kept.measured_at_s < 60
    assert kept_file(code).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("keys", [{"source": 41}, {"seed": 1}, {"threads": 2}, {"fuse": True}], ids=str)
def test_another_config_has_none(code, keys):
    cache(code).save(COSTS)
    assert cache(code, **keys).load() is None


class Times:
    """A stage from Python, with a value of its own."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, item):
        return self.factor * item


def test_another_object_of_the_same_class_has_none():
    def cache_of(factor):
        running = Pipeline(from_source(range(40)).map(Times(factor), name="double"))
        return CostCache(running.spec, running._plan_spec(running.spec))

    cache_of(2).save(COSTS)
    assert cache_of(2).load() is not None
    assert cache_of(3).load() is None


def test_an_object_that_cannot_be_compared_has_none(code):
    """As of an open file, nobody can tell whether it has changed."""
    cache(code).save(COSTS)  # so that the folder exists: looking for a file without a name opens nothing
    with Path(os.devnull).open() as held:
        running = Pipeline(from_source(range(40)).map(lambda item: (item, held.name)[0], name="double"))
        kept = CostCache(running.spec, running._plan_spec(running.spec))
        kept.save(COSTS)
        open_count = psutil.Process().num_fds()
        assert kept.load() is None
        assert psutil.Process().num_fds() == open_count


@pytest.mark.parametrize("file", ["ops.py", "helper_of_ops.py"])
def test_changed_code_has_none_and_other_times_are_no_change(code, file):
    (code.parent / "helper_of_ops.py").write_text("")
    code.write_text(f"import helper_of_ops\n{CODE}")
    cache(code).save(COSTS)
    os.utime(code, ns=(1, 1))
    assert cache(code).load() is not None
    with (code.parent / file).open("a") as changed:
        changed.write("SIZE = 2\n")
    assert cache(code).load() is None


def test_costs_are_forgotten_after_a_day_and_so_are_those_of_the_future(monkeypatch, code):
    cache(code).save(COSTS)
    now = time.time()
    for seconds, is_kept in ((23 * 3600, True), (25 * 3600, False), (-3600, False)):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: now + seconds)
        assert (cache(code).load() is not None) == is_kept


def with_negative_time(costs):
    return replace(costs, sink_ns=-1.0)


def with_absurd_time(costs):
    return replace(costs, sink_ns=1e18)


def with_another_stage(costs):
    return replace(costs, processes=(costs.processes[0], replace(costs.processes[1], name="triple")))


def without_hop(costs):
    return replace(costs, hops=costs.hops[:1])


@pytest.mark.parametrize("change", [with_negative_time, with_absurd_time, with_another_stage, without_hop])
def test_costs_of_other_stages_below_zero_or_absurd_are_none(code, change):
    cache(code).save(change(COSTS))
    assert cache(code).load() is None


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b'{"measured_at_s": 1}', b"[" * 100_000, b"\xff"], ids=str)
def test_a_damaged_file_is_none_and_is_replaced(code, content):
    cache(code).save(COSTS)
    kept_file(code).write_bytes(content)
    assert cache(code).load() is None
    cache(code).save(COSTS)
    assert cache(code).load() is not None


def test_the_file_of_another_user_is_none(code, monkeypatch):
    cache(code).save(COSTS)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache(code).load() is None


def test_a_pipe_in_place_of_the_file_does_not_block(code):
    cache(code).save(COSTS)
    file = kept_file(code)
    file.unlink()
    os.mkfifo(file)
    assert cache(code).load() is None


def test_the_fusable_stages_come_from_the_config_not_from_the_file(code):
    """A file cannot make a stage with state have two workers."""
    running = Pipeline(pipeline(stage(f"{code}:double", name="double", stateful=True)))
    plan = running._plan_spec(running.spec)
    tampered = msgspec.json.decode(msgspec.json.encode(COSTS), type=type(COSTS))
    [_, double] = add_layout_rules(tampered, plan).processes
    assert not COSTS.processes[1].is_single_worker
    assert double.is_single_worker
    assert double.unfusable_reason == "it keeps state (`stateful`)"
