"""Many small arrays of one kind travel as one, and nobody sees it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.transport import Policy
from stagepipe.transport.stacks import Stack, stacked
from tests.transport.loop import Loop


def alike(count=12, shape=(4, 5), dtype="f4"):
    return [(np.arange(np.prod(shape)).reshape(shape) + number).astype(dtype) for number in range(count)]


@pytest.mark.parametrize(
    "item",
    [
        alike(),
        tuple(alike(8, (7,), "i8")),
        dict(enumerate(alike(40, (256,)))),
        {"label": 3, "path": "a/b.jpg", **{f"a{n}": array for n, array in enumerate(alike())}, "end": None},
        ["first", *alike(9), 2.5, b"last"],
        alike(8, (3,), "c16"),
        alike(8, (1, 2, 3), "?"),
    ],
    ids=["list", "tuple", "dict", "dict with others", "list with others", "complex", "bool"],
)
def test_they_are_sent_as_one_and_arrive_as_they_were(loop, item):
    assert isinstance(stacked(item), Stack)
    arrived = loop.hop.carry(item)
    assert type(arrived) is type(item)
    if isinstance(item, dict):
        assert list(arrived) == list(item)
        item, arrived = item.values(), arrived.values()
    for sent, received in zip(item, arrived, strict=True):
        assert type(sent) is type(received)
        if isinstance(sent, np.ndarray):
            assert (sent.dtype, sent.shape) == (received.dtype, received.shape)
            assert not received.flags.writeable
        np.testing.assert_array_equal(sent, received)


def test_the_training_loop_may_write_to_each_of_them():
    loop = Loop(Policy(2048), readonly=False)
    with loop.stack:
        for shape in ((4,), (256,)):
            arrived = loop.hop.carry(alike(10, shape))
            before = arrived[1].copy()
            arrived[0][...] = 77
            np.testing.assert_array_equal(arrived[1], before)


same = np.zeros(4)


@pytest.mark.parametrize(
    "item",
    [
        alike(7),
        [*alike(8), np.zeros(3)],
        [*alike(8), np.zeros((4, 5))],
        [same] * 9,
        [same, *alike(8, (4,), "f8"), same],
        [*alike(8), alike(8)],
        alike(8, (2000,), "f8"),
        [np.array(n) for n in range(9)],
        [np.zeros(0) for n in range(9)],
        [np.zeros((3, 4), order="F") for n in range(9)],
        [np.array(["a"]) for n in range(9)],
        [np.array([None]) for n in range(9)],
        [np.zeros(2, "f4,i4") for n in range(9)],
        [np.ma.array([1, 2]) for n in range(9)],
        "text",
    ],
)
def test_what_is_not_plainly_alike_is_left_as_it_is(item):
    assert stacked(item) is item


def test_subclasses_of_containers_are_left_alone():
    class Item(dict):
        pass

    item = Item(enumerate(alike()))
    assert stacked(item) is item


@given(st.lists(st.integers(0, 2), max_size=30), st.sampled_from(["list", "dict"]))
def test_whatever_it_is_made_of_it_comes_back_equal(kinds, container):
    values = [[n, np.full(3, n), "x"][kind] for n, kind in enumerate(kinds)]
    item = values if container == "list" else {f"k{n}": value for n, value in enumerate(values)}
    loop = Loop(Policy(2048))
    with loop.stack:
        arrived = loop.hop.carry(item)
    back = arrived if container == "list" else list(arrived.values())
    assert (list(arrived) if container == "dict" else len(back)) == (list(item) if container == "dict" else len(item))
    for one, other in zip(values, back, strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)
