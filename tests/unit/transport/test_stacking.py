"""Many small arrays of one kind are sent as one, and arrive as separate arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.transport import TransportRule
from stagepipe.transport.codec import StackedArrays, stack_arrays
from tests.support.transport.hops import LoopbackHop


def make_arrays(count=12, shape=(4, 5), dtype="f4"):
    return [(np.arange(np.prod(shape)).reshape(shape) + number).astype(dtype) for number in range(count)]


@pytest.mark.parametrize(
    "item",
    [
        make_arrays(),
        tuple(make_arrays(8, (7,), "i8")),
        dict(enumerate(make_arrays(40, (256,)))),
        {"label": 3, "path": "a/b.jpg", **{f"a{n}": array for n, array in enumerate(make_arrays())}, "end": None},
        ["first", *make_arrays(9), 2.5, b"last"],
        make_arrays(8, (3,), "c16"),
        make_arrays(8, (1, 2, 3), "?"),
    ],
    ids=["list", "tuple", "dict", "dict with other values", "list with other values", "complex", "bool"],
)
def test_similar_arrays_are_sent_as_one_and_arrive_unchanged(loop, item):
    assert isinstance(stack_arrays(item), StackedArrays)
    arrived = loop.hop.transfer(item)
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


def test_the_training_loop_may_write_to_each_array():
    loop = LoopbackHop(TransportRule(threshold_bytes=2048), readonly=False)
    with loop.stack:
        for shape in ((4,), (256,)):
            arrived = loop.hop.transfer(make_arrays(10, shape))
            before = arrived[1].copy()
            arrived[0][...] = 77
            np.testing.assert_array_equal(arrived[1], before)


REPEATED = np.zeros(4)


@pytest.mark.parametrize(
    "item",
    [
        make_arrays(7),
        [*make_arrays(8), np.zeros(3)],
        [*make_arrays(8), np.zeros((4, 5))],
        [REPEATED] * 9,
        [REPEATED, *make_arrays(8, (4,), "f8"), REPEATED],
        [*make_arrays(8), make_arrays(8)],
        make_arrays(8, (2000,), "f8"),
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
def test_other_values_stay_as_they_are(item):
    assert stack_arrays(item) is item


def test_subclasses_of_containers_stay_as_they_are():
    class Item(dict):
        pass

    item = Item(enumerate(make_arrays()))
    assert stack_arrays(item) is item


@given(st.lists(st.integers(0, 2), max_size=30), st.sampled_from(["list", "dict"]))
def test_any_mix_of_values_arrives_equal(kinds, container):
    values = [[n, np.full(3, n), "x"][kind] for n, kind in enumerate(kinds)]
    item = values if container == "list" else {f"k{n}": value for n, value in enumerate(values)}
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        arrived = loop.hop.transfer(item)
    received = arrived if container == "list" else list(arrived.values())
    assert (list(arrived) if container == "dict" else len(received)) == (
        list(item) if container == "dict" else len(item)
    )
    for one, other in zip(values, received, strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)
