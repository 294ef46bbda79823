"""Any item arrives with the same bytes, and what it contains twice arrives as one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.transport.hops import LARGE, TRANSFER_SETUPS, LoopbackHop


class Field(np.ndarray):
    pass


def read_only(array):
    array.setflags(write=False)
    return array


DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
)
BASE = np.arange(LARGE, dtype=np.int16)
LEAVES = {
    "number": lambda: 3,
    "large number": lambda: 1 << 80,
    "float": lambda: float("nan"),
    "text": lambda: "text \udc80",
    "bytes": lambda: b"\0\1",
    "none": lambda: None,
    "truth": lambda: True,
    "NumPy number": lambda: np.float32(0.5),
    "small": lambda: np.arange(5),
    "large": BASE.copy,
    "view": lambda: BASE[100:40_000],
    "small view": lambda: BASE[3:9],
    "every other": lambda: BASE[::2],
    "reversed": lambda: BASE[:9][::-1],
    "Fortran": lambda: np.asfortranarray(np.arange(30_000.0).reshape(100, 300)),
    "small Fortran": lambda: np.arange(6.0).reshape(2, 3).T,
    "permuted": lambda: np.arange(24_000).reshape(20, 30, 40).transpose(1, 0, 2),
    "broadcast": lambda: np.broadcast_to(np.float64(2), (30, 40)),
    "no axes": lambda: np.array(4.5),
    "empty": lambda: np.zeros((0, 3), np.float32),
    "read-only": lambda: read_only(BASE.copy()),
    "structured": lambda: np.zeros(700, "f4,i8"),
    "big endian": lambda: np.arange(2000, dtype=">i4"),
    "dates": lambda: np.arange(3).astype("M8[s]"),
    "objects": lambda: np.array([1, "a", None], object),
    "texts": lambda: np.array(["a", "bcd"]),
    "subclass": lambda: BASE.view(Field),
    "masked": lambda: np.ma.masked_array([1, 2, 3], [0, 1, 0]),
    "gradient": lambda: torch.ones(2000, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "strided tensor": lambda: torch.arange(6000).reshape(60, 100).T,
    "sliced tensor": lambda: torch.arange(6000)[::3],
    "scalar tensor": lambda: torch.tensor(7),
    "empty tensor": lambda: torch.zeros(0, 2),
    **{f"tensor {name}": lambda name=name: torch.ones(1500).to(getattr(torch, name)) for name in DTYPES},
}
CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "dict": lambda values: {f"k{index}": value for index, value in enumerate(values)},
    "dict by number": lambda values: dict(enumerate(values)),
}


@st.composite
def items(draw):
    """The last of a few containers, each of which holds any of the leaves and containers before it."""
    nodes = [LEAVES[name]() for name in draw(st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, max_size=6))]
    for kind in draw(st.lists(st.sampled_from(sorted(CONTAINERS)), min_size=1, max_size=5)):
        nodes.append(CONTAINERS[kind](draw(st.lists(st.sampled_from(nodes), max_size=10))))
    return nodes[-1]


def describe(value, places):  # noqa: PLR0911 - a case for each kind of value
    """A plain description of a value. What can be changed, or holds it, is described once, then named by its place."""
    if (isinstance(value, dict | list | tuple) and value) or isinstance(value, np.ndarray | torch.Tensor):
        if id(value) in places:
            return "place", places[id(value)]
        places[id(value)] = len(places)
    if isinstance(value, dict):
        return dict, [(name, describe(part, places)) for name, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [describe(part, places) for part in value]
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().reshape(-1)
        octets = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return type(value), value.dtype, value.shape, value.requires_grad, octets
    if isinstance(value, np.ma.MaskedArray):
        return type(value), value.data.tolist(), value.mask.tolist()
    if isinstance(value, np.ndarray):
        data = value.tolist() if value.dtype.hasobject else value.tobytes()
        return type(value), value.dtype, value.shape, data
    return type(value), repr(value)


@pytest.mark.parametrize("setup", ["auto", "shared memory", "all through the pipe"])
@settings(max_examples=80)
@given(item=items())
def test_an_item_arrives_with_its_bytes_and_what_it_shares(setup, item):
    loop = LoopbackHop(*TRANSFER_SETUPS[setup])
    with loop.stack:
        arrived = loop.hop.transfer(item)
        assert describe(arrived, {}) == describe(item, {})


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_every_leaf_arrives_next_to_a_copy_of_itself(any_transfer, name):
    leaf = LEAVES[name]()
    item = {"one": leaf, "again": [leaf, (leaf,)], "other": LEAVES[name]()}
    assert describe(any_transfer.hop.transfer(item), {}) == describe(item, {})
