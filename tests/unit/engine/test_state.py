"""A state is refused if a function or an object of the pipeline does something else now, and the message says what."""

import functools
import json
import sys
import threading

import pytest

from stagepipe import Pipeline, UsageError, from_source

SCALE = 2


class Resize:
    def __init__(self, size):
        self.size = size

    def __call__(self, number):
        return number * self.size


class Guarded(Resize):
    def __init__(self, size):
        super().__init__(size)
        self.lock = threading.Lock()


def make(uses, source=range(6), **keys):
    """Return a pipeline of a source and a stage."""
    config = {"name": "test", "source": {"uses": source}, "stages": [{"name": "resize", "uses": uses, **keys}]}
    return Pipeline(config, inline=True)


def close_over(size):
    return lambda number: number * size


def add_in_a_nested_function(number):
    def add(part):
        return part + 1000

    return add(number)


def add_otherwise_in_a_nested_function(number):
    def add(part):
        return part + 2000

    return add(number)


add_otherwise_in_a_nested_function.__name__ = "add_in_a_nested_function"


def scale(factor, number):
    return factor * number


CHANGES = {
    "constant": (lambda number: number * 1000, lambda number: number * 2000, "constants: saved [1000], now [2000]"),
    "default": (
        lambda number, size=1: number * size,
        lambda number, size=2: number * size,
        "default `size`: saved 1, now 2",
    ),
    "keyword default": (
        lambda number, *, size=1: number * size,
        lambda number, *, size=2: number * size,
        "default `size`: saved 1, now 2",
    ),
    "closure": (close_over(224), close_over(256), "closure value `size`: saved 224, now 256"),
    "attribute": (Resize(224), Resize(256), "attribute `size`: saved 224, now 256"),
    "method": (Resize(224).__call__, Resize(256).__call__, "object: attribute `size`: saved 224, now 256"),
    "partial": (functools.partial(scale, 1), functools.partial(scale, 2), "argument 0: saved 1, now 2"),
    "nested": (
        add_in_a_nested_function,
        add_otherwise_in_a_nested_function,
        "constants: saved [1000], now [2000]",
    ),
    "code": (lambda number: number + SCALE, lambda number: number - SCALE, "code: changed"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_and_named(change):
    first, second, difference = CHANGES[change]
    state = json.loads(json.dumps(make(first).state_dict()))
    make(first).load_state_dict(state)
    with pytest.raises(UsageError, match="different config; resuming would yield different data") as caught:
        make(second).load_state_dict(state)
    assert f"stages.resize.uses: {difference}" in str(caught.value)
    assert "allow_changed=True" in str(caught.value)
    make(second).load_state_dict(state, allow_changed=True)


def test_a_global_constant_is_named(monkeypatch):
    pipeline = make(lambda number: number * SCALE)
    state = pipeline.state_dict()
    monkeypatch.setitem(globals(), "SCALE", 3)
    with pytest.raises(UsageError, match=r"stages\.resize\.uses: global `SCALE`: saved 2, now 3"):
        make(lambda number: number * SCALE).load_state_dict(state)


def test_arguments_and_sources_are_compared_too():
    state = make(Resize, **{"with": {"size": close_over(1)}}).state_dict()
    with pytest.raises(UsageError, match=r"stages\.resize\.with\.size: closure value `size`: saved 1, now 2"):
        make(Resize, **{"with": {"size": close_over(2)}}).load_state_dict(state)
    state = make(Resize(1), source=[Resize(1)]).state_dict()
    with pytest.raises(UsageError, match=r"source\.uses: element 0: attribute `size`: saved 1, now 2"):
        make(Resize(1), source=[Resize(2)]).load_state_dict(state)


def test_the_same_objects_built_again_are_accepted():
    make(Resize(3), source=[1, "a"]).load_state_dict(make(Resize(3), source=[1, "a"]).state_dict())
    make(close_over(3)).load_state_dict(make(close_over(3)).state_dict())


def test_an_object_without_a_fingerprint_runs_and_saves_but_does_not_resume():
    with make(Guarded(2)) as pipeline:
        items = iter(pipeline)
        assert [next(items), next(items)] == [0, 2]
        state = pipeline.state_dict()
    resumed = make(Guarded(2))
    with pytest.raises(UsageError, match="cannot be compared") as caught:
        resumed.load_state_dict(state)
    assert "stages.resize.uses: attribute `lock`: cannot pickle '_thread.lock' object" in str(caught.value)
    assert "`__getstate__`" in str(caught.value)
    resumed.load_state_dict(state, allow_changed=True)
    with resumed:
        assert list(resumed) == [4, 6, 8, 10]
    with pytest.raises(UsageError, match="attribute `size`: saved 2, now 3"):
        make(Guarded(3)).load_state_dict(state)


def test_a_state_of_an_object_without_a_fingerprint_is_refused_by_a_pipeline_without_it():
    with pytest.raises(UsageError, match="saved Guarded, now Resize"):
        make(Resize(2)).load_state_dict(make(Guarded(2)).state_dict())
    first, second = make(close_over(threading.Lock())), make(close_over(3))
    with pytest.raises(UsageError, match=r"stages\.resize\.uses: closure value `size`: cannot pickle"):
        second.load_state_dict(first.state_dict())
    with pytest.raises(UsageError, match=r"stages\.resize\.uses: closure value `size`: cannot pickle"):
        first.load_state_dict(second.state_dict())


def test_an_inline_run_that_changes_its_objects_resumes():
    class Counter:
        def __init__(self):
            self.count = 0

        def __call__(self, number):
            self.count += 1
            return number

    with make(Counter()) as pipeline:
        items = iter(pipeline)
        assert [next(items), next(items)] == [0, 1]
        state = pipeline.state_dict()
    with make(Counter()) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == [2, 3, 4, 5]


def test_fingerprints_are_computed_only_where_a_state_may_be_taken():
    class Reduced(Resize):
        count = 0

        def __reduce_ex__(self, protocol):
            Reduced.count += 1
            return super().__reduce_ex__(protocol)

    assert from_source(range(3)).map(Reduced(2)).take(2) == [0, 2]
    pipeline = Pipeline({"source": {"uses": range(3)}, "stages": [{"name": "resize", "uses": Reduced(2)}]})
    assert Reduced.count == 0
    pipeline.state_dict()
    assert Reduced.count == 1
    pipeline.state_dict()
    assert Reduced.count == 1


def test_bytecode_of_another_python_is_not_compared(monkeypatch):
    state = make(close_over(1)).state_dict()
    saved = json.loads(state["config"])
    assert saved["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    saved |= {"python": "3.9", "stages.resize.uses: code": "#000000000000"}
    with pytest.raises(UsageError, match=r"python: saved 3\.9, now 3\.\d+; bytecode differs") as caught:
        make(close_over(1)).load_state_dict({**state, "config": json.dumps(saved)})
    assert "code: changed" not in str(caught.value)
    assert "python" not in json.loads(make("math.sqrt").state_dict()["config"])


@pytest.mark.parametrize(
    "change, difference",
    [
        ({"order": "any"}, "order: saved source, now any"),
        (
            {"stages": [{"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": 2}}]},
            "order_points: saved 0, now 1",
        ),
    ],
)
def test_a_change_that_leaves_no_position_is_refused_even_then(change, difference):
    config = {"name": "test", "source": {"uses": range(6)}, "stages": [{"name": "same", "uses": Resize(1)}]}
    state = Pipeline(config).state_dict()
    with pytest.raises(UsageError, match="no position in this config, even with allow_changed=True") as caught:
        Pipeline({**config, **change}).load_state_dict(state, allow_changed=True)
    assert difference in str(caught.value)
    with pytest.raises(UsageError, match="even: saved None, now drop"):
        Pipeline(config, even="drop").load_state_dict(state, allow_changed=True)


def test_a_state_with_objects_is_small():
    config = {"name": "test", "source": {"uses": list(range(10_000))}}
    stages = [{"name": f"stage{number}", "uses": close_over([Resize(number)] * 100)} for number in range(10)]
    assert len(json.dumps(Pipeline({**config, "stages": stages}).state_dict())) < 20_000
