"""A user's own order point: behind several workers, inline, resumed and after a death, as Batch and Shuffle."""

import itertools
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from stagepipe.testing import crash_workers_at
from tests.support.pipelines import batch, outputs, pipeline, plain, stage

POINTS = "tests.support.order_points"
pytestmark = pytest.mark.timeout(60)


def own(name: str, **arguments: Any) -> dict[str, Any]:
    return stage(f"{POINTS}.{name}", with_=arguments)


def blocks(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


NUMBERS = [number for number in range(31) if number % 3]
CASES = {
    "Pairs": (own("Pairs"), [tuple(pair) for pair in blocks(NUMBERS, 2)]),
    "SortedBlocks": (
        own("SortedBlocks", size=4),
        [n for block in blocks(NUMBERS, 4) for n in sorted(block, reverse=True)],
    ),
    "Runs": (own("Runs"), [[1, 2, 4, 5], [7, 8, 10], [11, 13, 14, 16, 17, 19, 20], [22, 23, 25], [26, 28, 29]]),
}


def make(entry: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return pipeline(stage("skip_thirds", workers=3), entry, stage("same", workers=2), source=31, **keys)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_takes_items_in_order_and_a_resume_continues_inside_a_group(name, inline):
    entry, expected = CASES[name]
    with Pipeline(make(entry), inline=inline) as running:
        assert [plain(item) for item in running] == expected
        running.set_epoch(0)
        assert [plain(item) for item in itertools.islice(running, 3)] == expected[:3]
        state = running.state_dict()
    with Pipeline(make(entry), inline=inline) as resumed:
        resumed.load_state_dict(state)
        assert [plain(item) for item in resumed] == expected[3:]


@pytest.mark.parametrize("name", CASES)
def test_a_death_changes_nothing(name):
    entry, expected = CASES[name]
    with crash_workers_at(f"send.after:3:{entry['name']}/0"), Pipeline(make(entry)) as running:
        assert [plain(item) for item in running] == expected
        assert running.report().restarts


@pytest.mark.parametrize("name", ["Pairs", "SortedBlocks"])
def test_in_any_order_every_item_comes_once_also_after_a_resume(name):
    config = make(CASES[name][0], order="any")
    flatten = (lambda items: items) if name == "SortedBlocks" else (lambda items: [n for pair in items for n in pair])
    with Pipeline(config) as running:
        head = [plain(item) for item in itertools.islice(running, 5)]
        state = running.state_dict()
    with Pipeline(config) as resumed:
        resumed.load_state_dict(state)
        assert sorted(flatten(head + [plain(item) for item in resumed])) == NUMBERS


@pytest.mark.parametrize("inline", [False, True])
def test_its_outputs_are_counted(inline):
    config = pipeline(own("Pairs", drop_last=True), own("SortedBlocks", size=3), batch(4), source=31)
    with Pipeline(config, inline=inline) as running:
        assert len(running) == len(list(running)) == 4
    with (
        Pipeline(pipeline(own("Runs")), inline=inline) as running,
        pytest.raises(TypeError, match="order point of any size"),
    ):
        len(running)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    "name,words",
    [
        ("WithoutFlush", "`is_permutation`, `items_per_output`, `drop_last`, `flush`, `finish`, `clear`; subclass"),
        ("HiddenPairs", "order point, but its source code does not show that; set `order_point = True` in the class"),
    ],
)
def test_an_order_point_with_a_mistake_is_refused_at_the_start(name, words, inline):
    with pytest.raises(RunError) as caught:
        outputs(pipeline(own(name)), inline=inline)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "entry,words",
    [
        (own("Twice"), "returned 2 outputs of one group; return one, or set `order=source`"),
        (own("Copies", size=3), "did not return exactly the items it was given"),
    ],
)
def test_in_any_order_outputs_that_cannot_be_traced_are_refused(entry, words):
    with pytest.raises(RunError) as caught:
        outputs(pipeline(entry, order="any"))
    assert words in str(caught.value)
