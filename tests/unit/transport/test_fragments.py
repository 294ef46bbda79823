"""Items sent in fragments arrive complete, and either side may stop in the middle of one."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import TransportError
from stagepipe.transport import PacketKind, TransportRule, make_packet_pipe
from stagepipe.transport.packet import (
    PACKET_BYTES,
    FragmentAssembler,
    encode_body,
    is_fragment,
    pack,
    split_into_fragments,
    unpack,
)
from stagepipe.transport.pipe import make_socket_pair
from tests.support.transport.hops import ALWAYS_PIPE_THRESHOLD_BYTES, LoopbackHop

FRAGMENTING_POLICY = TransportRule(threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES, large_in_pipe=True)
HUGE_BYTES = 3_000_000


def make_assembler(body, generation=1):
    return FragmentAssembler(*unpack(pack(PacketKind.FRAGMENTED, (generation, (0,), 1, b""), count_or_bytes=len(body))))


def join(fragment):
    return bytearray(b"".join(fragment))


@given(st.lists(st.tuples(st.binary(max_size=9000), st.integers(0, 3)), max_size=5), st.binary(max_size=9000))
def test_a_body_decodes_to_its_contents(buffers, pickle):
    body = encode_body([(np.frombuffer(raw, np.uint8), flags) for raw, flags in buffers], pickle)
    assembler = make_assembler(body)
    for fragment in split_into_fragments(body, 1):
        data = join(fragment)
        assert len(data) <= PACKET_BYTES
        assert is_fragment(data)
        with pytest.raises(TransportError):
            unpack(data)
        assert assembler.add_fragment(data)
    assert assembler.is_complete
    arrays, flags, pickle_view = assembler.decode_body()
    assert [array.tobytes() for array in arrays] == [raw for raw, _ in buffers]
    assert (flags, bytes(pickle_view)) == ([flag for _, flag in buffers], pickle)


@given(st.binary(max_size=PACKET_BYTES))
def test_garbage_is_no_fragment(data):
    assert not is_fragment(bytearray(data))


@given(st.binary(min_size=1, max_size=300))
def test_a_body_of_garbage_is_rejected(data):
    assembler = make_assembler(data)
    for fragment in split_into_fragments(bytearray(data), 1):
        assembler.add_fragment(join(fragment))
    try:
        arrays, _, _ = assembler.decode_body()
    except TransportError:
        return
    assert sum(array.nbytes for array in arrays) <= len(data) * len(arrays)


def test_a_missing_fragment_raises_and_one_of_another_item_is_ignored():
    body = encode_body([(np.zeros(20_000, np.uint8), 0)], b"x")
    first, _, third, *_ = map(join, split_into_fragments(body, 1))
    assembler = make_assembler(body)
    assembler.add_fragment(first)
    with pytest.raises(TransportError, match="fragment 1 of a large item is missing; fragment 2 arrived"):
        assembler.add_fragment(third)
    assert not assembler.add_fragment(join(next(split_into_fragments(body, 2))))


@pytest.fixture(params=[make_packet_pipe, make_socket_pair])
def loop(request):
    loop = LoopbackHop(FRAGMENTING_POLICY, request.param)
    with loop.stack:
        yield loop


def start_sending(hop, item, generation):
    """Start a thread that sends `item`; it appends the result to the returned list."""
    results = []
    thread = threading.Thread(target=lambda: results.append(hop.send(item, generation)))
    thread.start()
    return thread, results


def test_an_interrupted_sender_drops_its_item_and_the_next_one_arrives(loop):
    thread, results = start_sending(loop.hop, np.zeros(HUGE_BYTES, np.uint8), 1)
    time.sleep(0.05)  # the pipe is full and has no reader
    loop.hop.is_interrupted = True
    loop.hop.wake_event.set()
    thread.join(30)
    assert results == [False]
    loop.hop.is_interrupted = False
    thread, results = start_sending(loop.hop, np.ones(HUGE_BYTES, np.uint8), 2)
    assert loop.hop.receiver.receive(1, 5) is None, "its item is incomplete, and the next packet is newer"
    assert loop.hop.receive(2).all()
    thread.join(30)
    assert results == [True]


def test_a_reader_in_a_newer_generation_drops_the_fragments_of_an_older_item(loop):
    thread, results = start_sending(loop.hop, np.zeros(HUGE_BYTES, np.uint8), 1)
    while thread.is_alive():  # on a busy machine it writes for longer than a reader waits
        assert loop.hop.receiver.receive(2, 0.2) is None
    assert results == [True], "the reader has emptied the pipe"
    assert loop.hop.receiver.receive(2, 0.0) is None
    thread, _ = start_sending(loop.hop, np.ones(9000, np.uint8), 2)
    assert loop.hop.receive(2).all()
    thread.join(30)


def test_an_interrupted_reader_continues_with_the_next_generation(loop):
    loop.hop.sender._fd = loop.hop.pipe.write_fd
    write_fragments = loop.hop.sender._write_fragments
    loop.hop.sender._write_fragments = lambda body, *arguments: write_fragments(body[:60_000], *arguments)
    loop.hop.send(np.zeros(HUGE_BYTES, np.uint8))  # as if the sender were killed after some fragments
    loop.hop.sender._write_fragments = write_fragments
    threading.Timer(0.05, lambda: (setattr(loop.hop, "is_interrupted", True), loop.hop.wake_event.set())).start()
    begin = time.monotonic()
    assert loop.hop.receiver.receive(1) is None
    assert time.monotonic() - begin < 30, "not only when the next packet comes"
    loop.hop.is_interrupted = False
    thread, _ = start_sending(loop.hop, np.ones(HUGE_BYTES, np.uint8), 2)
    assert loop.hop.receive(2).all()
    thread.join(30)


def test_an_incomplete_item_within_a_generation_is_an_error(loop):
    write_fragments = loop.hop.sender._write_fragments
    loop.hop.sender._write_fragments = lambda body, *arguments: write_fragments(body[:60_000], *arguments)
    loop.hop.send(np.zeros(HUGE_BYTES, np.uint8))
    loop.hop.send("the next")
    with pytest.raises(TransportError, match="stopped in the middle"):
        loop.hop.receive(1)


def test_a_fragmented_item_takes_no_shared_memory(loop):
    arrived = loop.hop.transfer({"array": np.zeros(HUGE_BYTES, np.uint8), "text": "x" * 9000})
    assert loop.sender_pool.arena.allocator.peak_bytes == 0
    assert not arrived["array"].flags.writeable  # a stage
    assert loop.hop.sender.counts.inline_bytes > HUGE_BYTES
