"""Dead letters: what is made again is no loss, what stays skipped is, and too much of it ends the run."""

from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.core import Cursor, RunError
from stagepipe.plan import Curves, Machine, Plan, make_plan
from stagepipe.runtime.letters import Letters
from stagepipe.runtime.messages import DeadLetter
from tests.zoo.pipelines import batch, pipeline, stage

CURVES = Curves.simple((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


def plan(**keys: Any) -> Plan:
    config = pipeline(stage("same", name="a"), batch(4), stage("same", name="b"), **keys)
    return make_plan(load(config), Machine(2, 1 << 30), CURVES)


def letter(name: str, *key: int, generation: int = 1, epoch: int = 0) -> DeadLetter:
    return DeadLetter(1, name, 0, list(key), str(key[0]), "ValueError: no", "", 1, generation, epoch, [key[0]])


def held(letters: Letters) -> list[tuple[int, str, str]]:
    return [(each["epoch"], each["stage"], each["item"]) for each in letters.all()]


def test_letters_of_what_is_made_again_are_forgotten():
    letters = Letters(plan(), int)
    for each in [letter("a", 3), letter("a", 8), letter("a", 8, 1), letter("a", 9), letter("b", 1), letter("b", 2)]:
        letters.take(each)
    upstream = Cursor(None, 8, (8, 0))
    letters.seek(2, 0, [upstream, Cursor(upstream, 2)], [["a", [9]]])
    assert held(letters) == [(0, "b", "1"), (0, "a", "3"), (0, "a", "8"), (0, "a", "9")], "9 is imposed, 8 is behind"


def test_letters_of_another_epoch_stay():
    letters = Letters(plan(), int)
    letters.take(letter("a", 3))
    letters.seek(2, 1, [Cursor(), Cursor()], [])
    assert held(letters) == [(0, "a", "3")]


def test_a_letter_that_comes_late_counts_only_if_its_item_is_not_made_again():
    letters = Letters(plan(), int)
    letters.seek(2, 0, [Cursor(None, 5), Cursor()], [])
    letters.take(letter("a", 4, generation=1))
    letters.take(letter("a", 5, generation=1))
    assert held(letters) == [(0, "a", "4")]
    letters.take(letter("a", 5, generation=2))
    letters.take(letter("a", 5, generation=2))
    assert held(letters) == [(0, "a", "4"), (0, "a", "5")]


@pytest.mark.parametrize(
    "limit, items_in, skipped, at_end, fails",
    [
        (None, 1000, 500, True, False),
        (0, 1000, 1, False, True),
        (2, 3, 2, False, False),
        (2, 3, 3, False, True),
        ("1%", 99, 5, False, False),
        ("1%", 99, 5, True, True),
        ("1%", 500, 5, False, False),
        ("1%", 500, 6, False, True),
    ],
)
def test_more_than_max_skipped_ends_the_run(limit, items_in, skipped, at_end, fails):
    letters = Letters(plan(**({} if limit is None else {"max_skipped": limit})), lambda: items_in)
    for item in range(skipped):
        letters.take(letter("a", item))
    error = letters.beyond(at_end=at_end)
    assert (error is not None) is fails
    if error is not None:
        assert error.stage == "a"
        assert f"items skipped for errors: {skipped}, of {items_in:,} from the source" in error.message
        assert f"`max_skipped` is {limit}" in error.message


def test_at_the_end_a_letter_on_its_way_is_waited_for():
    letters = Letters(plan(max_skipped=0), int, sent=lambda: letters.take(letter("a", 1)) or 1)
    with pytest.raises(RunError, match="item 1: ValueError: no"):
        letters.judge()
