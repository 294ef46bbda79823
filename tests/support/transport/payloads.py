"""Objects of every kind that can be sent, and a comparison of them. Child processes import this too."""

from __future__ import annotations

import io
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors


class Point(NamedTuple):
    x: float
    y: Any


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - an untyped one is sent as well


@dataclass
class Sample:
    image: Any
    label: int
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Box:
    corners: Any


class Colour(Enum):
    RED = 1


class Marked(np.ndarray):
    """A third-party array type with an attribute."""

    mark: Any = None

    def __array_finalize__(self, other):
        self.mark = getattr(other, "mark", None)

    def __reduce__(self):
        rebuild, arguments, state = super().__reduce__()
        return rebuild, arguments, (state, self.mark)

    def __setstate__(self, state):
        super().__setstate__(state[0])
        self.mark = state[1]


class Packed:
    """A third-party type that pickles a PickleBuffer (PEP 574)."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol):
        return Packed, (pickle.PickleBuffer(self.data),)


class Named(torch.Tensor):
    """A third-party tensor type."""


def numpy_payloads() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    grid = rng.random((40, 50, 3))
    dtypes = "?bBhHiIlLqQefdgFDG"
    payloads: dict[str, Callable[[], Any]] = {
        f"dtype {np.dtype(code).name} {code}": lambda code=code: (rng.random((30, 40)) * 100).astype(code)
        for code in dtypes
    }
    record = np.dtype([("id", "<i4"), ("box", "<f8", (4,)), ("name", "U5")])
    aligned = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    return payloads | {
        "0-d": lambda: np.array(3.5),
        "0-d large": lambda: np.array("x" * 3000),
        "scalar": lambda: np.float32(2.5),
        "empty": lambda: np.empty((0, 3), np.float32),
        "empty in the middle": lambda: np.empty((4, 0, 2), np.int8, order="F"),
        "no fields": lambda: np.empty(3, np.dtype([])),
        "Fortran order": lambda: np.asfortranarray(grid),
        "transposed": lambda: grid.transpose(2, 0, 1),
        "strided": lambda: grid[::2, ::3],
        "one column": lambda: grid[:, 3, 1],
        "negative strides": lambda: grid[::-1, :, ::-1],
        "negative strides, one axis": lambda: np.arange(9000)[::-1],
        "broadcast": lambda: np.broadcast_to(np.arange(100.0), (90, 100)),
        "big-endian": lambda: np.arange(5000, dtype=">i4"),
        "big-endian, strided": lambda: np.arange(9000, dtype=">f8")[::3],
        "read-only": lambda: _frozen(np.arange(4000)),
        "structured": lambda: _filled(record),
        "structured, aligned": lambda: _filled(aligned),
        "one field": lambda: _filled(record)["box"],
        "datetime64": lambda: np.arange("2020-01", "2099-12", dtype="datetime64[M]").astype("datetime64[ns]"),
        "timedelta64": lambda: np.arange(3000).astype("timedelta64[s]"),
        "dtype with metadata": lambda: np.zeros(600, np.dtype("f8", metadata={"unit": "m"})),
        "void": lambda: np.frombuffer(bytes(range(250)) * 20, "V5"),
        "unicode": lambda: np.array(["a", "bcd", "é"] * 500),
        "bytes array": lambda: np.array([b"a", b"bcd"] * 800),
        **(
            {"StringDType": lambda: np.array(["a", "bcd" * 50, "é"] * 90, np.dtypes.StringDType())}
            if hasattr(np.dtypes, "StringDType")  # since NumPy 2.0
            else {}
        ),
        "objects": lambda: np.array([None, "x", 3, np.arange(2000)] * 2, object),
        "matrix": lambda: grid[:, :, 0].view(np.matrix),
        "recarray": lambda: _filled(record).view(np.recarray),
        "masked": lambda: np.ma.masked_greater(grid, 0.5),
        "own subclass": _marked,
        "many small": lambda: [np.full(3, n) for n in range(300)],
        "many large": lambda: [np.full(900, n) for n in range(150)],
        "same array twice": lambda: _twice(np.arange(2000.0)),
        "two views of one array": lambda: _with_part(np.arange(5000)),
    }


def torch_payloads() -> dict[str, Callable[[], Any]]:
    names = (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 "
        "complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    )
    dtypes = [getattr(torch, name) for name in names.split() if hasattr(torch, name)]

    def of(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        bytes_ = torch.randint(0, 2 if dtype is torch.bool else 200, (*shape, dtype.itemsize), dtype=torch.uint8)
        return bytes_.view(dtype).reshape(shape)

    payloads: dict[str, Callable[[], Any]] = {}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        payloads[f"tensor {name}"] = lambda dtype=dtype: of(dtype, (40, 60))
        payloads[f"tensor {name} 0-d"] = lambda dtype=dtype: of(dtype, ())
        payloads[f"tensor {name} strided"] = lambda dtype=dtype: of(dtype, (40, 60))[::2, 1::3]
        payloads[f"tensor {name} empty"] = lambda dtype=dtype: torch.empty((0, 3), dtype=dtype)
    grid = torch.randn(4, 3, 20, 30)
    return payloads | {
        "tensor channels last": lambda: grid.contiguous(memory_format=torch.channels_last),
        "tensor transposed": lambda: grid.permute(3, 1, 0, 2),
        "tensor expanded": lambda: torch.randn(1, 50).expand(60, 50),
        "tensor bfloat16 channels last": lambda: grid.bfloat16().contiguous(memory_format=torch.channels_last),
        "tensor conjugated": lambda: torch.randn(2000, dtype=torch.complex64).conj(),
        "tensor negated": lambda: torch.randn(2000, dtype=torch.complex64).conj().imag,
        "tensor that requires a gradient": lambda: torch.randn(2000, requires_grad=True),
        "tensor with an attribute": lambda: _with_attribute(torch.randn(2000)),
        "parameter": lambda: torch.nn.Parameter(torch.randn(30, 40)),
        "module": lambda: torch.nn.Linear(40, 50),
        "sparse": lambda: torch.eye(60).to_sparse(),
        "sparse, not coalesced": lambda: torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,), check_invariants=True),
        "sparse csr": lambda: torch.eye(60).to_sparse_csr(),
        "sparse csc": lambda: torch.eye(60).to_sparse_csc(),
        "sparse bsr": lambda: torch.eye(60).to_sparse_bsr((2, 3)),
        "sparse that requires a gradient": lambda: torch.eye(60).to_sparse().requires_grad_(),
        "quantized": lambda: torch.quantize_per_tensor(torch.randn(3000), 0.1, 0, torch.qint8),
        "views of one storage": lambda: _with_part(torch.randn(1000, 2)),
        "image tensor": lambda: tv_tensors.Image(torch.randint(0, 255, (3, 40, 50), dtype=torch.uint8)),
        "mask tensor": lambda: tv_tensors.Mask(torch.zeros(40, 90, dtype=torch.bool)),
        "boxes": lambda: tv_tensors.BoundingBoxes(torch.rand(300, 4), format="XYWH", canvas_size=(480, 640)),
        "own tensor": lambda: torch.randn(2000).as_subclass(Named),
        "own tensor that requires a gradient": lambda: torch.randn(2000).as_subclass(Named).requires_grad_(),
    }


def image_payloads() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(1)

    def of(mode: str) -> Image.Image:
        return Image.fromarray(rng.integers(0, 255, (60, 80, 3), np.uint8)).convert(mode)

    def file(kind: str, mode: str = "RGB") -> Image.Image:
        data = io.BytesIO()
        of(mode).save(data, kind, dpi=(72, 72))
        return Image.open(io.BytesIO(data.getvalue()))

    modes = ("RGB", "L", "RGBA", "P", "PA", "1", "F", "I", "CMYK", "LA", "YCbCr", "HSV")
    payloads: dict[str, Callable[[], Any]] = {f"image {mode}": lambda mode=mode: of(mode) for mode in modes}
    return payloads | {
        "image I;16": lambda: Image.fromarray(rng.integers(0, 60000, (60, 80), np.uint16)),
        "image of no size": lambda: Image.new("RGB", (0, 5)),
        "image with info": lambda: _with_info(of("RGB")),
        "JPEG, not loaded": lambda: file("JPEG"),
        "JPEG, loaded": lambda: _loaded(file("JPEG")),
        "PNG with a palette": lambda: file("PNG", "P"),
    }


def python_payloads() -> dict[str, Callable[[], Any]]:
    payloads: dict[str, Callable[[], Any]] = {
        "None": lambda: None,
        "number": lambda: 3,
        "huge number": lambda: 1 << 90000,
        "text": lambda: "grüße" * 2000,
        "bytes": lambda: bytes(range(256)) * 40,
        "bytearray": lambda: bytearray(range(256)) * 40,
        "sets": lambda: ({1, 2}, frozenset("abc")),
        "dates and decimals": lambda: (datetime(2020, 1, 2), Decimal("1.10"), Fraction(1, 3), PurePosixPath("a/b"), 1j),  # noqa: DTZ001
        "enum": lambda: Colour.RED,
        "counter": lambda: Counter("abca"),
        "defaultdict": lambda: defaultdict(list, a=[1]),
        "ordered": lambda: OrderedDict(b=1, a=np.arange(1000)),
        "random state": lambda: random.Random(3),
        "namedtuple": lambda: Point(1.5, np.arange(3000)),
        "untyped namedtuple": lambda: Pair(np.arange(3), "x"),
        "dataclass": lambda: Sample(np.ones((40, 40)), 3, {"deep": [torch.zeros(900), (np.arange(3), None)]}),
        "frozen dataclass": lambda: Box(np.arange(4.0)),
        "nested": lambda: {"a": [1, (2.0, {"b": np.arange(9000)})], None: [], "t": ({},)},
        "mixed sizes": lambda: {n: np.full(n, 7, np.uint8) for n in (0, 1, 15, 16, 17, 900, 2047, 2048, 4096, 70000)},
        "third-party buffer": lambda: Packed(bytearray(b"ab" * 5000)),
        "third-party small buffer": lambda: Packed(bytearray(b"ab")),
        "third-party empty buffer": lambda: Packed(bytearray()),
        "third-party read-only buffer": lambda: Packed(b"ab" * 5000),
        "third-party array": lambda: Packed(np.arange(3000)),
    }
    sizes = (0, 1, 3900, 3999, 4000, 4001, 4040, 4095, 4096, 4097, 10000, 300000)
    return payloads | {f"pickle of {size} bytes": lambda size=size: b"x" * size for size in sizes}


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _filled(dtype: np.dtype) -> np.ndarray:
    array = np.zeros(100, dtype)
    for number, name in enumerate(dtype.names):
        array[name] = number + 1
    return array


def _marked() -> Marked:
    array = np.arange(3000.0).view(Marked)
    array.mark = {"by": "test"}
    return array


def _twice(array: np.ndarray) -> dict[str, Any]:
    return {"one": array, "other": [array]}


def _with_part(whole: Any) -> dict[str, Any]:
    return {"all": whole, "part": whole[100:900:2]}


def _with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.custom_attribute = "x"
    return tensor


def _with_info(image: Image.Image) -> Image.Image:
    image.info["icc"] = b"x" * 5000
    return image


def _loaded(image: Image.Image) -> Image.Image:
    image.load()
    return image


PAYLOADS = numpy_payloads() | torch_payloads() | image_payloads() | python_payloads()

# ---------------------------------------------------------------------------------------------- equal


def is_equal(one: Any, other: Any) -> bool:
    """Whether both have the same type, structure, dtype, shape and values; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    for kind, compare in _COMPARE:
        if isinstance(one, kind):
            return compare(one, other)
    if is_dataclass(one):
        return all(is_equal(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
    return bool(one == other)


def _equal_arrays(one: np.ndarray, other: np.ndarray) -> bool:
    if (one.dtype, one.shape, one.dtype.metadata) != (other.dtype, other.shape, other.dtype.metadata):
        return False
    if isinstance(one, np.ma.MaskedArray):
        return _equal_arrays(one.data, other.data) and _equal_arrays(one.mask, other.mask)
    if getattr(one, "mark", None) != getattr(other, "mark", None):
        return False
    if one.dtype.hasobject:
        return all(is_equal(a, b) for a, b in zip(one.ravel().tolist(), other.ravel().tolist(), strict=True))
    if one.dtype.names:
        return all(_equal_arrays(np.asarray(one[name]), np.asarray(other[name])) for name in one.dtype.names)
    return one.tobytes() == other.tobytes() or np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)


def _equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    properties = [
        (tensor.dtype, tensor.shape, tensor.layout, tensor.requires_grad, tensor.is_quantized, sorted(tensor.__dict__))
        for tensor in (one, other)
    ]
    if properties[0] != properties[1] or not all(
        is_equal(value, other.__dict__[name]) for name, value in one.__dict__.items()
    ):
        return False
    if one.layout is not torch.strided:
        return bool((one.to_dense() == other.to_dense()).all())
    if one.is_quantized:
        return torch.equal(one, other)
    return _bytes_of(one) == _bytes_of(other)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _equal_mappings(one: Any, other: Any) -> bool:
    return list(one) == list(other) and all(is_equal(one[key], other[key]) for key in one)


def _equal_images(one: Image.Image, other: Image.Image) -> bool:
    return bool(one == other)


def _equal_modules(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return is_equal(dict(one.state_dict()), dict(other.state_dict()))


_COMPARE: tuple[tuple[Any, Callable[[Any, Any], bool]], ...] = (
    (np.ndarray, _equal_arrays),
    (torch.Tensor, _equal_tensors),
    (torch.nn.Module, _equal_modules),
    (Image.Image, _equal_images),
    (dict, _equal_mappings),
    ((list, tuple), lambda a, b: len(a) == len(b) and all(map(is_equal, a, b))),
    (Packed, lambda a, b: bytes(a.data) == bytes(b.data)),
    (random.Random, lambda a, b: a.getstate() == b.getstate()),
)
