"""What leaves the pickle, what stays in it, and that the pickler recognizes torch and PIL without importing them."""

from __future__ import annotations

import copyreg
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from stagepipe.transport import Encoder, TransportRule
from stagepipe.transport.codec import ReducerTable, _dtype_code, _dtype_code_cache
from tests.support.transport.hops import LoopbackHop, is_in_arena


@pytest.fixture
def encoder(loop):
    return Encoder(loop.sender_pool)


@pytest.mark.parametrize(
    "item",
    [
        np.zeros(90_000),
        np.zeros((300, 300), order="F"),
        np.zeros((300, 300))[::2],
        torch.zeros(90_000),
        torch.zeros(300, 300).T,
        torch.zeros(90_000, dtype=torch.bfloat16),
        Image.new("RGB", (300, 300)),
        torch.nn.Parameter(torch.zeros(90_000)),
    ],
    ids=lambda item: type(item).__name__,
)
def test_array_bytes_are_not_in_the_pickle(encoder, item):
    encoder.encode({"item": item})
    assert len(encoder.pickle_data) < 400
    assert sum(buffer.nbytes for buffer in encoder.buffers) >= 90_000


def test_a_small_dict_of_an_array_pickles_small(encoder):
    encoder.encode({"id": 1, "label": 2, "image": np.zeros(9000, np.uint8)})
    assert len(encoder.pickle_data) < 80


def test_memo_and_buffers_are_cleared_after_each_item(encoder):
    array = np.zeros(9000)
    sizes = []
    for _ in range(3):
        encoder.encode([array, array])
        sizes.append((len(encoder.pickle_data), len(encoder.buffers)))
        encoder.clear()
    assert len(set(sizes)) == 1
    assert (encoder.pickle_data, encoder.buffers, encoder.lease_boxes) == (b"", [], [])


def test_many_different_dtypes_do_not_fill_memory():
    for number in range(2000):
        _dtype_code(np.dtype([(f"field{number}", "f4")]))
    assert len(_dtype_code_cache) <= 1000


def test_a_fresh_process_does_not_import_torch_or_pil_to_send_an_array():
    code = (
        "import sys; from stagepipe.transport import TransportRule; import numpy as np\n"
        "from tests.support.transport.hops import LoopbackHop\n"
        "loop = LoopbackHop(TransportRule(threshold_bytes=2048))\n"
        "assert loop.hop.transfer({'a': np.arange(9000), 'b': object})['a'][-1] == 8999\n"
        "print('torch' in sys.modules, 'PIL' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_types_with_their_own_pickling_use_it():
    class SelfPickling(torch.Tensor):
        def __reduce_ex__(self, protocol):
            return str, ("own pickling",)

    class Slotted(torch.Tensor):
        __slots__ = ("more",)

    class Scan(Image.Image):
        def __getstate__(self):
            return [*super().__getstate__(), "state"]

    def reduced(value):
        return ReducerTable(lambda _: 0)[type(value)](value)

    assert reduced(torch.zeros(3).as_subclass(SelfPickling)) == (str, ("own pickling",))
    assert reduced(torch.zeros(3).as_subclass(Slotted))[0].__module__.startswith("torch")
    with pytest.raises(KeyError):
        ReducerTable(lambda _: 0)[Scan]
    assert ReducerTable(lambda _: 0)[ImageFile.ImageFile] is not None


def test_a_received_image_can_be_drawn_on(loop):
    image = loop.hop.transfer(Image.new("RGB", (300, 300), "red"))
    image.putpixel((0, 0), (0, 255, 0))
    assert image.getpixel((0, 0)) == (0, 255, 0)
    assert loop.settle() == 0, "PIL copies the pixels, so no block is held"


class OutOfBand:
    """Pickles its bytes out of band and keeps the buffer that arrives."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return OutOfBand, (pickle.PickleBuffer(self.data),)


@pytest.mark.parametrize("readonly", [True, False])
def test_a_third_party_buffer_arrives_as_a_memoryview_of_the_senders_arena(readonly):
    loop = LoopbackHop(TransportRule(threshold_bytes=2048), readonly=readonly)
    with loop.stack:
        received = loop.hop.transfer(OutOfBand(bytearray(b"x" * 9000)))
        assert type(received.data) is memoryview
        assert received.data.readonly is readonly
        assert is_in_arena(np.frombuffer(received.data, np.uint8), loop.receiver_pool, 0)
        del received
        assert loop.settle() == 0


def test_a_third_party_strided_buffer_stays_in_the_pickle(encoder):
    with pytest.raises((pickle.PicklingError, BufferError, ValueError)):
        encoder.encode(OutOfBand(memoryview(bytearray(9000))[::2]))
    assert encoder.buffers == []


def test_registering_the_rebuilders_does_not_change_ordinary_pickles():
    data = io.BytesIO()
    pickle.Pickler(data, 5).dump(np.arange(3))
    assert b"stagepipe" not in data.getvalue()
    assert all(
        0xF0 <= code <= 0xFF for (module, _), code in copyreg._extension_registry.items() if "stagepipe" in module
    )
