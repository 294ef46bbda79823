"""What leaves a pickle, what stays in it, and that a pickler learns torch and PIL without importing them."""

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

from stagepipe.transport import Policy
from stagepipe.transport.arrays import _codes, _dtype_code
from stagepipe.transport.codec import Encoder
from stagepipe.transport.reducers import Reducers
from tests.transport.loop import Loop, lies_in


@pytest.fixture
def encoder(loop):
    return Encoder(loop.before)


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
def test_the_bytes_leave_the_pickle(encoder, item):
    encoder.encode({"item": item})
    assert len(encoder.pickle) < 400
    assert sum(buffer.nbytes for buffer in encoder.buffers) >= 90_000


def test_a_small_dict_of_an_array_pickles_small(encoder):
    encoder.encode({"id": 1, "label": 2, "image": np.zeros(9000, np.uint8)})
    assert len(encoder.pickle) < 80


def test_memo_and_buffers_are_forgotten_after_each_item(encoder):
    array = np.zeros(9000)
    sizes = []
    for _ in range(3):
        encoder.encode([array, array])
        sizes.append((len(encoder.pickle), len(encoder.buffers)))
        encoder.clear()
    assert len(set(sizes)) == 1
    assert (encoder.pickle, encoder.buffers, encoder.leases) == (b"", [], [])


def test_a_stream_of_ever_new_dtypes_does_not_fill_memory():
    for number in range(2000):
        _dtype_code(np.dtype([(f"field{number}", "f4")]))
    assert len(_codes) <= 1000


def test_a_fresh_process_does_not_import_torch_or_pil_to_send_an_array():
    code = (
        "import sys; from stagepipe.transport import Policy; import numpy as np\n"
        "from tests.transport.loop import Loop\n"
        "assert Loop(Policy(2048)).hop.carry({'a': np.arange(9000), 'b': object})['a'][-1] == 8999\n"
        "print('torch' in sys.modules, 'PIL' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_types_that_pickle_themselves_are_left_to_it():
    class Own(torch.Tensor):
        def __reduce_ex__(self, protocol):
            return str, ("my way",)

    class Slotted(torch.Tensor):
        __slots__ = ("more",)

    class Scan(Image.Image):
        def __getstate__(self):
            return [*super().__getstate__(), "mine"]

    def reduced(value):
        return Reducers(lambda _: 0)[type(value)](value)

    assert reduced(torch.zeros(3).as_subclass(Own)) == (str, ("my way",))
    assert reduced(torch.zeros(3).as_subclass(Slotted))[0].__module__.startswith("torch")
    with pytest.raises(KeyError):
        Reducers(lambda _: 0)[Scan]
    assert Reducers(lambda _: 0)[ImageFile.ImageFile] is not None


def test_an_image_that_is_rebuilt_is_its_own_to_draw_on(loop):
    image = loop.hop.carry(Image.new("RGB", (300, 300), "red"))
    image.putpixel((0, 0), (0, 255, 0))
    assert image.getpixel((0, 0)) == (0, 255, 0)
    assert loop.settle() == 0, "PIL copies the pixels, so no block is held"


class Raw:
    """Its bytes go out of band, and it says what came in."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return Raw, (pickle.PickleBuffer(self.data),)


@pytest.mark.parametrize("readonly", [True, False])
def test_a_third_partys_buffer_comes_in_as_a_memoryview_over_the_senders_memory(readonly):
    loop = Loop(Policy(2048), readonly=readonly)
    with loop.stack:
        raw = loop.hop.carry(Raw(bytearray(b"x" * 9000)))
        assert type(raw.data) is memoryview
        assert raw.data.readonly is readonly
        assert lies_in(np.frombuffer(raw.data, np.uint8), loop.after, 0)
        del raw
        assert loop.settle() == 0


def test_a_third_partys_strided_buffer_stays_in_the_pickle(encoder):
    with pytest.raises((pickle.PicklingError, BufferError, ValueError)):
        encoder.encode(Raw(memoryview(bytearray(9000))[::2]))
    assert encoder.buffers == []


def test_registering_the_rebuilders_leaves_ordinary_pickles_alone():
    data = io.BytesIO()
    pickle.Pickler(data, 5).dump(np.arange(3))
    assert b"stagepipe" not in data.getvalue()
    assert all(
        0xF0 <= code <= 0xFF for (module, _), code in copyreg._extension_registry.items() if "stagepipe" in module
    )
