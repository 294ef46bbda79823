"""The functions in C give what their twins in Python give, and the hook compiles them wherever it can."""

import importlib.util
import os
import pickle
import random
import select
import signal
import sys
import sysconfig
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import TransportError
from stagepipe.transport import chunk, make_packet_pipe, native, packet
from stagepipe.transport.packet import PACKET_BYTES, PacketKind

CHECKOUT = Path(__file__).parents[3]
needs_c = pytest.mark.skipif(native.read_ready is None, reason="installed without a compiler")

texts = st.text(max_size=12)
parts = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**63), 2**63), st.floats(), texts, st.binary(max_size=80),
    st.just([]), st.just(1j), st.builds(np.zeros, st.integers(0, 50)),
)  # fmt: skip
items = st.one_of(
    parts, st.lists(parts, max_size=70), st.lists(parts, max_size=5).map(tuple),
    st.dictionaries(st.one_of(texts, st.integers()), parts, max_size=8),
)  # fmt: skip


class Text(str):
    """A string whose pickling runs its own code."""

    __slots__ = ()


class Number(int):
    """A number whose pickling runs its own code."""

    __slots__ = ()


@needs_c
@given(items, st.sampled_from([0, 100, 4000]), st.sampled_from([20, 1340, 3900]))
def test_items_are_measured_alike(item, below_bytes, max_bytes):
    assert native.measure_plain(item, below_bytes, max_bytes) == chunk.measure_plain(item, below_bytes, max_bytes)


@needs_c
@pytest.mark.parametrize("item", [Text("a"), {Text("a"): 1}, {"a": Text("a")}, [Number(1)], (Number(1),), Number(1)])
def test_subclasses_are_not_plain(item):
    assert native.measure_plain(item, 0, 4000) == 0


@needs_c
@pytest.mark.parametrize("bits", [0, 1, 7, 8, 31, 32, 62, 63, 64, 65, 1000])
def test_integers_are_measured_alike(bits):
    for number in (1 << bits, (1 << bits) - 1, -(1 << bits), -(1 << bits) - 1):
        assert native.measure_plain(number, 0, 4000) == chunk.measure_plain(number, 0, 4000)


@needs_c
@given(
    st.tuples(
        st.sampled_from(sorted(map(int, PacketKind))), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**40), st.binary(max_size=100), st.integers(0, 2**64 - 1),
    )
)  # fmt: skip
def test_packets_of_one_item_are_alike(fields):
    made = native.pack_small(*fields)
    assert made == packet.pack_small(*fields)
    assert native.unpack(made) == packet.unpack(made)


@needs_c
@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 1000, PACKET_BYTES - 52])
def test_packets_of_any_length_are_alike(nbytes):
    data = random.Random(nbytes).randbytes(nbytes)
    made = native.pack_small(int(PacketKind.CHUNK), 1, 2, 3, data, 4)
    assert made == packet.pack_small(int(PacketKind.CHUNK), 1, 2, 3, data, 4)
    (entry,) = native.unpack(made)
    assert type(entry) is packet.Entry
    assert entry == packet.unpack(made)[0]
    assert entry.data is made


@needs_c
def test_a_pickle_that_exceeds_a_packet_is_refused():
    with pytest.raises(ValueError, match="4045 bytes"):
        native.pack_small(8, 1, 2, 3, bytes(PACKET_BYTES - 51), 4)


def make_packets():
    pickle_data = pickle.dumps([1, 2])
    entry = packet.pack_entry(PacketKind.ITEM, (1, (5,), 1, b""), 9, pickle_data=pickle_data)
    part = packet.pack_entry(PacketKind.ITEM, (1, (5, 2), 1, b"meta"), 9, pickle_data=pickle_data)
    block = packet.pack(PacketKind.ITEM, (1, (5,), 1, b""), descriptors=[(1, 0, 0, 512, 0, 99)], pickle_data=b"x")
    body = bytearray(range(100))
    header, data = next(iter(packet.split_into_fragments(body, 1)))
    return {
        "one": packet.join_entries((entry,), 7),
        "two": packet.join_entries((entry, part), 7),
        "part": packet.join_entries((part,), 7),
        "block": block,
        "fragment": header + data,
        "short": b"short",
        "none": b"",
    }


def result_of(unpack, data):
    try:
        return unpack(data)
    except TransportError as error:
        return str(error)


@needs_c
@pytest.mark.parametrize("name", make_packets())
@pytest.mark.parametrize("make", [bytes, bytearray])
def test_packets_are_unpacked_alike_also_when_damaged(name, make):
    whole = make_packets()[name]
    for index in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[index] ^= 1 << bit
            assert result_of(native.unpack, make(damaged)) == result_of(packet.unpack, make(damaged))
    for end in range(len(whole) + 1):
        assert result_of(native.unpack, make(whole[:end])) == result_of(packet.unpack, make(whole[:end]))


@needs_c
def test_an_unknown_kind_with_a_good_checksum_is_rejected():
    made = native.pack_small(99, 1, 2, 3, b"", 4)
    with pytest.raises(TransportError, match="kind 99"):
        native.unpack(made)


@needs_c
def test_no_reference_is_lost_or_kept():
    data = bytes(bytearray(b"pickle"))
    native.unpack(native.pack_small(8, 1, 2, 3, data, 4))
    class_references = sys.getrefcount(packet.Entry)
    item = {"a": 10**6, "b": "text", "c": 1.5}
    before = [sys.getrefcount(value) for value in (data, item, *item.values())]
    for _ in range(1000):
        native.measure_plain(item, 0, 4000)
        native.unpack(native.pack_small(8, 1, 2, 3, data, 4))
    assert [sys.getrefcount(value) for value in (data, item, *item.values())] == before
    assert sys.getrefcount(packet.Entry) < class_references + 10


# ---------------------------------------------------------------- the wait


@pytest.fixture
def pipe():
    """A packet pipe, and an epoll descriptor on its read end and on an eventfd: (ends, epoll, event)."""
    ends = make_packet_pipe(16)
    event = os.eventfd(0, os.EFD_NONBLOCK)
    with select.epoll() as epoll:
        epoll.register(ends.read_fd, select.EPOLLIN)
        epoll.register(event, select.EPOLLIN)
        yield ends, epoll, event
    ends.close()
    os.close(event)


@needs_c
def test_a_wait_returns_the_next_packet_or_none(pipe):
    ends, epoll, event = pipe
    wait = (epoll.fileno(), ends.read_fd, 0.001)
    assert native.read_ready(*wait) is None
    os.write(ends.write_fd, b"a" * PACKET_BYTES)
    os.write(ends.write_fd, b"b")
    assert native.read_ready(*wait) == b"a" * PACKET_BYTES
    assert native.read_ready(*wait) == b"b"
    os.write(ends.write_fd, b"c")
    os.eventfd_write(event, 1)
    assert native.read_ready(*wait) is None, "the event comes first"
    os.eventfd_read(event)
    assert native.read_ready(*wait) == b"c"
    os.close(ends.write_fd)
    assert native.read_ready(*wait) == b"", "no writer is left"


@needs_c
def test_other_threads_run_during_a_wait(pipe):
    ends, epoll, _ = pipe
    writer = threading.Timer(0.05, lambda: os.write(ends.write_fd, b"late"))
    writer.start()
    assert native.read_ready(epoll.fileno(), ends.read_fd, 30.0) == b"late"
    writer.join()


@needs_c
def test_a_signal_ends_a_wait_and_its_handler_may_raise(pipe):
    ends, epoll, _ = pipe

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            native.read_ready(epoll.fileno(), ends.read_fd, 30.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@needs_c
def test_a_wait_for_a_closed_descriptor_is_an_error(pipe):
    ends, epoll, _ = pipe
    fd = epoll.fileno()
    epoll.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        native.read_ready(fd, ends.read_fd, 0.001)


# ---------------------------------------------------------------- the build


@pytest.fixture
def hook(monkeypatch):
    """The module of the build hook; hatchling itself is where wheels are built."""
    interface = types.ModuleType("interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", CHECKOUT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(hook, root, target="wheel"):
    native_hook = hook.NativeHook()
    native_hook.root = str(root)
    native_hook.target_name = target
    build_data = {"artifacts": []}
    native_hook.initialize("standard", build_data)
    return build_data


@pytest.fixture
def root(tmp_path):
    """A checkout with the C file only."""
    source = tmp_path / "stagepipe" / "transport" / "_native.c"
    source.parent.mkdir(parents=True)
    source.write_bytes((CHECKOUT / "stagepipe" / "transport" / "_native.c").read_bytes())
    return tmp_path


@needs_c
def test_the_hook_compiles_the_module_for_this_python(hook, root):
    name = "stagepipe/transport/_native" + sysconfig.get_config_var("EXT_SUFFIX")
    assert build(hook, root) == {"artifacts": [name], "pure_python": False, "infer_tag": True}
    assert (root / name).stat().st_size


@pytest.mark.parametrize("variable,value", [("CC", "/no/compiler"), ("CC", "false"), ("STAGEPIPE_PURE", "1")])
def test_without_a_compiler_the_wheel_is_pure_python(hook, root, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert build(hook, root) == {"artifacts": []}
    assert [path.name for path in (root / "stagepipe" / "transport").iterdir()] == ["_native.c"]


def test_a_source_distribution_compiles_nothing(hook, root):
    assert build(hook, root, "sdist") == {"artifacts": []}
