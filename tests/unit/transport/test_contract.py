"""Objects of every kind arrive equal through every kind of hop, and hold no block afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stagepipe.transport import TransportRule, make_packet_pipe
from tests.support.transport.hops import TRANSFER_SETUPS, LoopbackHop
from tests.support.transport.payloads import PAYLOADS, is_equal


@pytest.fixture(params=TRANSFER_SETUPS, scope="module")
def loop(request):
    loop = LoopbackHop(*TRANSFER_SETUPS[request.param])
    with loop.stack:
        yield loop


# torch warns once per process when it creates these.
@pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:Sparse C:UserWarning",
    "ignore:ComplexHalf support:UserWarning",
)
@pytest.mark.parametrize("name", PAYLOADS)
def test_every_payload_arrives_equal(loop, name):
    item = PAYLOADS[name]()
    arrived = loop.hop.transfer({"item": item, "other": np.arange(5)})
    assert is_equal(arrived["item"], item)
    assert is_equal(arrived["other"], np.arange(5))
    assert arrived["item"] is not item or item is None or isinstance(item, int) or name == "enum"
    del arrived
    assert loop.settle() == 0


@pytest.mark.parametrize("receiver_options", [{"readonly": False}, {"copy_all": True}], ids=str)
@pytest.mark.parametrize(
    "name", ["mixed sizes", "nested", "tensor float32", "boxes", "many large", "third-party buffer"]
)
def test_writable_items_arrive_equal(name, receiver_options):
    loop = LoopbackHop(TransportRule(threshold_bytes=2048), make_packet_pipe, **receiver_options)
    with loop.stack:
        item = PAYLOADS[name]()
        assert is_equal(loop.hop.transfer(item), item)
        assert loop.settle() == 0


def test_a_hundred_megabytes_of_bytes_arrive_equal():
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        data = np.random.default_rng(0).bytes(100 << 20)
        assert loop.hop.transfer({"data": data})["data"] == data
        assert loop.settle() == 0
        assert loop.hop.sender._encoder.pickle_data == b""  # the sender does not keep them either


def test_the_same_array_twice_in_an_item_stays_one(any_transfer):
    array, tensor = np.arange(5000.0), torch.arange(5000.0)
    arrived = any_transfer.hop.transfer({"a": array, "b": [array], "t": tensor, "u": (tensor,)})
    assert arrived["a"] is arrived["b"][0]
    assert arrived["t"] is arrived["u"][0]


def test_a_recursive_container_arrives_recursive(any_transfer):
    item: list = [np.arange(3000)]
    item.append(item)
    arrived = any_transfer.hop.transfer(item)
    assert arrived[1] is arrived


def test_a_copyreg_registration_takes_precedence(any_transfer, monkeypatch):
    import copyreg

    monkeypatch.setitem(copyreg.dispatch_table, torch.nn.Parameter, lambda _: (str, ("registered",)))
    assert any_transfer.hop.transfer(torch.nn.Parameter(torch.zeros(2))) == "registered"


def test_an_unpicklable_item_raises_and_holds_no_block(any_transfer):
    loan = any_transfer.sender_pool.loan(5000)
    array = np.ndarray((5000,), np.uint8, loan)
    del loan
    with pytest.raises((AttributeError, TypeError), match="local object"):
        any_transfer.hop.send_from([{"array": array, "function": lambda: None}])
    del array
    assert any_transfer.settle() == 0
    assert is_equal(
        any_transfer.hop.transfer([1, np.arange(3000)]), [1, np.arange(3000)]
    )  # the next item is unaffected
