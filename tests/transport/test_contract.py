"""Objects of every kind arrive equal, whichever way the hop carries them, and leave nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stagepipe.transport import Policy, make_pipe
from tests.transport.loop import WAYS, Loop
from tests.transport.things import THINGS, same


@pytest.fixture(params=WAYS, scope="module")
def way(request):
    loop = Loop(*WAYS[request.param])
    with loop.stack:
        yield loop


# torch says so of what it is asked to make, once a process.
@pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:Sparse C:UserWarning",
    "ignore:ComplexHalf support:UserWarning",
)
@pytest.mark.parametrize("name", THINGS)
def test_it_arrives_equal(way, name):
    item = THINGS[name]()
    arrived = way.hop.carry({"item": item, "beside": np.arange(5)})
    assert same(arrived["item"], item)
    assert same(arrived["beside"], np.arange(5))
    assert arrived["item"] is not item or item is None or isinstance(item, int) or name == "enum"
    del arrived
    assert way.settle() == 0


@pytest.mark.parametrize("reading", [{"readonly": False}, {"private": True}], ids=str)
@pytest.mark.parametrize(
    "name", ["mixed sizes", "nested", "tensor float32", "boxes", "many large", "third party's buffer"]
)
def test_it_arrives_equal_for_those_who_write_into_it(name, reading):
    loop = Loop(Policy(2048), make_pipe, **reading)
    with loop.stack:
        item = THINGS[name]()
        assert same(loop.hop.carry(item), item)
        assert loop.settle() == 0


def test_a_hundred_megabytes_of_bytes_arrive_equal():
    loop = Loop(Policy(2048))
    with loop.stack:
        data = np.random.default_rng(0).bytes(100 << 20)
        assert loop.hop.carry({"data": data})["data"] == data
        assert loop.settle() == 0
        assert loop.hop.sender._encoder.pickle == b""  # nor does the sender keep them


def test_the_same_array_twice_in_an_item_stays_one(any_way):
    array, tensor = np.arange(5000.0), torch.arange(5000.0)
    arrived = any_way.hop.carry({"a": array, "b": [array], "t": tensor, "u": (tensor,)})
    assert arrived["a"] is arrived["b"][0]
    assert arrived["t"] is arrived["u"][0]


def test_a_recursive_container_arrives_recursive(any_way):
    item: list = [np.arange(3000)]
    item.append(item)
    arrived = any_way.hop.carry(item)
    assert arrived[1] is arrived


def test_what_somebody_registered_with_copyreg_goes_his_way(any_way, monkeypatch):
    import copyreg

    monkeypatch.setitem(copyreg.dispatch_table, torch.nn.Parameter, lambda _: (str, ("registered",)))
    assert any_way.hop.carry(torch.nn.Parameter(torch.zeros(2))) == "registered"


def test_what_cannot_be_pickled_says_so_and_leaves_nothing_behind(any_way):
    loan = any_way.before.loan(5000)
    array = np.ndarray((5000,), np.uint8, loan)
    del loan
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        any_way.hop.send_from([{"array": array, "function": lambda: None}])
    del array
    assert any_way.settle() == 0
    assert same(any_way.hop.carry([1, np.arange(3000)]), [1, np.arange(3000)])  # and the next item is not disturbed
