"""An item that cannot be unpickled, or kills the process that tries, is named, retried and skipped like any other."""

import functools

import pytest

from stagepipe import Pipeline, RunError
from tests.support.pipelines import batch, pipeline, stage
from tests.support.unreadable_items import make

pytestmark = pytest.mark.timeout(60)
COUNT = 6
MODULE = "tests.support.unreadable_items"


def make_config(kind, *stages, array_bytes=0):
    uses = functools.partial(make, kind=kind, array_bytes=array_bytes)
    return pipeline({"name": "make", "uses": uses}, *stages, source=COUNT)


def reader(**keys):
    return stage(f"{MODULE}.{'read_all' if 'batch' in keys else 'read'}", name="read", **keys)


@pytest.mark.parametrize(
    "kind, attempts, keys",
    [
        ("exits", 3, {}),
        ("crashes", 1, {}),
        ("raises", 1, {}),
        ("exits", 1, {"retries": 0, "transport": "shared_memory"}),
        ("exits", 1, {"retries": 0, "transport": "pipe"}),
        ("raises", 1, {"batch": {"size": 2, "max_wait": "1s"}}),
        ("exits", 1, {"retries": 0, "batch": {"size": 2, "max_wait": "1s"}}),
    ],
)
def test_it_is_skipped_and_named_in_the_dead_letters(kind, attempts, keys):
    config = make_config(kind, reader(on_error="skip", **keys), array_bytes=1 << 18 if "transport" in keys else 0)
    with Pipeline(config) as running:
        assert list(running) == [0, 1, 2, 4, 5]
        letters = [(letter.stage, letter.item, letter.attempts) for letter in running.dead_letters]
        restarts = running.report().restarts
    assert letters == [("read", "3", attempts)]
    assert len(restarts) == (0 if kind == "raises" else attempts)


@pytest.mark.parametrize(
    "kind, words",
    [
        ("exits", r"item 3 .* exit code 7; this item has killed 3 workers; set `stages.read.on_error=skip`"),
        ("raises", r"item 3: .*cannot be unpickled in the receiving process: ValueError: bad state"),
    ],
)
def test_it_ends_the_run_by_name_without_on_error(kind, words):
    with Pipeline(make_config(kind, reader())) as running, pytest.raises(RunError, match=words) as caught:
        list(running)
    assert (caught.value.stage, caught.value.item) == ("read", "3")
    assert ("in __setstate__" in caught.value.trace) == (kind == "raises")


@pytest.mark.parametrize("kind", ["exits", "raises"])
def test_an_order_point_names_it(kind):
    with Pipeline(make_config(kind, batch(2))) as running, pytest.raises(RunError, match="item 3") as caught:
        list(running)
    assert (caught.value.stage, caught.value.item) == ("batch", "3")
    assert "on_error" not in caught.value.message


def test_the_consumer_names_it():
    with Pipeline(make_config("raises")) as running:
        items = iter(running)
        assert [next(items)["number"] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RunError, match=r"item 3: .*ValueError: bad state") as caught:
            next(items)
    assert caught.value.item == "3"
    assert "in __setstate__" in caught.value.trace
