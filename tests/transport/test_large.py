"""What is forced through the pipe in fragments arrives whole; either side may be cut off in the middle of it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import TransportError
from stagepipe.transport import Policy, make_pipe, make_socket_pair
from stagepipe.transport.large import Body, fragments, is_fragment, make_body
from stagepipe.transport.packet import PACKET_BYTES, Kind, pack, unpack
from tests.transport.loop import NEVER, Loop

FORCED = Policy(NEVER, large_in_pipe=True)
HUGE = 3_000_000


def announced(body, generation=1):
    return Body(unpack(pack(Kind.LARGE, (generation, (0,), 1, b""), number=len(body))))


def joined(pieces):
    return bytearray(b"".join(pieces))


@given(st.lists(st.tuples(st.binary(max_size=9000), st.integers(0, 3)), max_size=5), st.binary(max_size=9000))
def test_a_body_is_what_it_was_made_of(buffers, pickle):
    body = make_body([(np.frombuffer(raw, np.uint8), flags) for raw, flags in buffers], pickle)
    target = announced(body)
    for pieces in fragments(body, 1):
        data = joined(pieces)
        assert len(data) <= PACKET_BYTES
        assert is_fragment(data)
        with pytest.raises(TransportError):
            unpack(data)
        assert target.add(data)
    assert target.complete
    arrays, flags, stream = target.open()
    assert [array.tobytes() for array in arrays] == [raw for raw, _ in buffers]
    assert (flags, bytes(stream)) == ([flag for _, flag in buffers], pickle)


@given(st.binary(max_size=PACKET_BYTES))
def test_garbage_is_no_fragment(data):
    assert not is_fragment(bytearray(data))


@given(st.binary(min_size=1, max_size=300))
def test_a_body_of_garbage_is_refused(data):
    target = announced(data)
    for pieces in fragments(bytearray(data), 1):
        target.add(joined(pieces))
    try:
        arrays, _, _ = target.open()
    except TransportError:
        return
    assert sum(array.nbytes for array in arrays) <= len(data) * len(arrays)


def test_a_missing_fragment_is_noticed_and_another_items_is_not_taken():
    body = make_body([(np.zeros(20_000, np.uint8), 0)], b"x")
    first, _, third, *_ = map(joined, fragments(body, 1))
    target = announced(body)
    target.add(first)
    with pytest.raises(TransportError, match="fragment 1 of a large item is missing; fragment 2 came"):
        target.add(third)
    assert not target.add(joined(next(fragments(body, 2))))


@pytest.fixture(params=[make_pipe, make_socket_pair])
def forced(request):
    loop = Loop(FORCED, request.param)
    with loop.stack:
        yield loop


def sending(hop, item, generation):
    """A thread that sends `item`; its answer is in the list."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(hop.send(item, generation)))
    thread.start()
    return thread, answers


def test_a_sender_that_is_interrupted_in_the_middle_lets_go_and_the_next_item_arrives(forced):
    thread, answers = sending(forced.hop, np.zeros(HUGE, np.uint8), 1)
    time.sleep(0.05)  # the pipe is full, and nobody reads
    forced.hop.stopped = True
    forced.hop.bell.ring()
    thread.join(5)
    assert answers == [False]
    forced.hop.stopped = False
    thread, answers = sending(forced.hop, np.ones(HUGE, np.uint8), 2)
    assert forced.hop.receiver.receive(1, 5) is None, "its item is not finished, and the next packet is newer"
    assert forced.hop.receive(2).all()
    thread.join(5)
    assert answers == [True]


def test_a_reader_that_has_turned_to_a_newer_generation_drops_the_rest_of_an_older_item(forced):
    thread, answers = sending(forced.hop, np.zeros(HUGE, np.uint8), 1)
    assert forced.hop.receiver.receive(2, 0.2) is None
    thread.join(5)
    assert answers == [True], "the reader has taken all of it out of the pipe"
    thread, _ = sending(forced.hop, np.ones(9000, np.uint8), 2)
    assert forced.hop.receive(2).all()
    thread.join(5)


def test_a_reader_that_is_interrupted_in_the_middle_goes_on_with_the_next_generation(forced):
    forced.hop.sender._fd, pipe = forced.hop.pipe.write_fd, forced.hop.sender._write_body
    forced.hop.sender._write_body = lambda body, generation, waited: pipe(body[:60_000], generation, waited)
    forced.hop.send(np.zeros(HUGE, np.uint8))  # a sender that is killed after some fragments
    forced.hop.sender._write_body = pipe
    threading.Timer(0.05, lambda: (setattr(forced.hop, "stopped", True), forced.hop.bell.ring())).start()
    begin = time.monotonic()
    assert forced.hop.receiver.receive(1) is None
    assert time.monotonic() - begin < 2
    forced.hop.stopped = False
    thread, _ = sending(forced.hop, np.ones(HUGE, np.uint8), 2)
    assert forced.hop.receive(2).all()
    thread.join(5)


def test_an_item_that_breaks_off_within_a_generation_is_an_error(forced):
    pipe = forced.hop.sender._write_body
    forced.hop.sender._write_body = lambda body, generation, waited: pipe(body[:60_000], generation, waited)
    forced.hop.send(np.zeros(HUGE, np.uint8))
    forced.hop.send("the next")
    with pytest.raises(TransportError, match="stopped in the middle"):
        forced.hop.receive(1)


def test_a_large_item_takes_no_shared_memory_and_may_be_written_where_it_arrives(forced):
    arrived = forced.hop.carry({"array": np.zeros(HUGE, np.uint8), "text": "x" * 9000})
    assert forced.before.arena.allocator.peak == 0
    assert not arrived["array"].flags.writeable  # a stage
    assert forced.hop.sender.counts.inline_bytes > HUGE
