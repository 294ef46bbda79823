"""A block is in use exactly as long as something views it; then its owner receives a release."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.transport import TransportRule, make_byte_pipe
from tests.support.transport.hops import LARGE, LoopbackHop, Processes, TwoHops, address, loaned_array


def in_a_cycle(array):
    cycle = [array]
    cycle.append(cycle)
    return cycle


VIEWS = {
    "itself": lambda a: a,
    "a slice": lambda a: a[5:9],
    "a slice of a slice": lambda a: a[5:][:3][1:],
    "reshaped": lambda a: a.reshape(2, -1)[1],
    "a tensor over it": torch.from_numpy,
    "a view of a tensor over it": lambda a: torch.from_numpy(a)[7:].reshape(-1)[3:5],
    "a tensor's array again": lambda a: torch.from_numpy(a).numpy()[3:],
    "a memoryview": memoryview,
    "a subclass": lambda a: a.view(np.matrix),
    "in a cycle": in_a_cycle,
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_last_view_holds_the_block(name):
    loop = LoopbackHop(TransportRule(threshold_bytes=2048), readonly=False)
    with loop.stack:
        array = loop.hop.transfer(np.arange(LARGE))
        view = VIEWS[name](array)
        del array
        assert loop.settle() > 0
        del view
        if name == "in a cycle":
            gc.collect()
        assert loop.settle() == 0


def test_a_block_is_reused_only_after_its_last_view(loop):
    views = []
    for number in range(20):
        arrived = loop.hop.transfer(np.full(LARGE, number, np.int32))
        views.append(arrived[number:][:100])
        del arrived
        loop.settle()
    assert [set(view.tolist()) for view in views] == [{number} for number in range(20)]
    assert len({address(view) // (4 * LARGE) for view in views}) > 1
    views.clear()
    loop.settle()
    next_offset = loop.sender_pool.arena.allocator.next_offset
    for _ in range(50):
        loop.hop.transfer(np.zeros(LARGE, np.int32))
        loop.settle()
    assert loop.sender_pool.arena.allocator.next_offset == next_offset, (
        "released blocks are reused before fresh ones are taken"
    )


def test_kept_arrays_outlive_the_pool():
    """The last batch stays readable after the pipeline is closed. Runs in its own process, because it may crash."""
    code = """
        import gc, numpy as np, torch
        from stagepipe.transport import TransportRule
        from tests.support.transport.hops import LoopbackHop
        loop = LoopbackHop(TransportRule(threshold_bytes=2048))
        array, tensor = loop.hop.transfer([np.arange(100_000), torch.arange(100_000)])
        loan = np.ndarray(9000, np.uint8, loop.sender_pool.loan(9000))
        loop.stack.close()
        del loop
        gc.collect()
        print(int(array.sum()) == int(tensor.sum()) == sum(range(100_000)), loan.fill(3), loan.sum())
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "None", "27000"]), done.stderr


def test_views_may_die_in_any_thread(loop):
    received = [loop.hop.transfer(np.full(5000, number)) for number in range(40)]
    threads = [threading.Thread(target=received[start::4].clear) for start in range(4)]
    received.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads, thread
    assert loop.settle() == 0


shapes = st.lists(st.integers(0, 12), min_size=0, max_size=4).map(tuple)
dtypes = st.sampled_from(["u1", "<i2", ">f4", "f8", "c16", "M8[s]", "U3"])
arrays = st.builds(lambda shape, dtype, repeat: np.zeros((repeat, *shape), dtype), shapes, dtypes, st.integers(1, 40))


@settings(max_examples=60)
@given(st.lists(st.lists(arrays, max_size=5), min_size=1, max_size=6), st.data())
def test_no_sequence_of_sending_keeping_forwarding_and_dropping_leaks(items, data):
    line = TwoHops(TransportRule(threshold_bytes=data.draw(st.sampled_from([1, 256, 2048]))))
    with line.stack:
        kept = []
        for number, item in enumerate(items):
            line.first.send(item, key=(number,))
            item_box = [line.first.receive()]
            if data.draw(st.booleans()):
                kept.append(item_box[0])
            if data.draw(st.booleans()):
                line.second.send_from(item_box, key=(number,))
                arrived = line.second.receive()
                assert [a.tobytes() for a in arrived] == [a.tobytes() for a in item]
                if data.draw(st.booleans()):
                    kept.append(arrived)
                del arrived
            item_box.clear()
        del item_box
        kept.clear()
        assert line.settle() == 0
        assert [pool.lease_count for pool in line.pools] == [0, 0, 0]
        assert not any(pool._live_leases for pool in line.pools)


# ---------------------------------------------------------------------------------------------- records


def test_a_full_release_pipe_blocks_nobody_and_loses_nothing():
    processes = Processes(3)
    with processes.stack:
        source, other, reader = processes.pools
        blocks = [source.allocate(600) for _ in range(10_000)]
        other_block = other.allocate(600)
        for block in blocks:
            reader.release_block(0, block)
        reader.release_block(1, other_block)
        reader.flush_releases()
        assert reader.lease_count > 0, "the pipe does not hold ten thousand records, and has no reader"
        other.collect_releases()
        assert other.arena.allocator.live_bytes == 0, (
            "an owner that does not read does not hold up the blocks of another"
        )
        while reader.lease_count:
            source.collect_releases()
            reader.flush_releases()
        source.collect_releases()
        assert source.arena.allocator.live_bytes == 0


def test_a_block_whose_second_reference_cannot_be_sent_is_copied(line):
    line.first.send(np.arange(LARGE))
    kept = line.first.receive()
    while True:  # the source does not read its releases
        try:
            os.write(line.release_pipes[0][1], bytes(16))
        except BlockingIOError:
            break
    line.second.send(kept)
    assert line.second.sender.counts.copied_bytes >= kept.nbytes
    assert (line.second.receive() == kept).all()


def test_a_damaged_release_record_is_rejected(loop):
    os.write(loop.release_pipes[0][1], bytes(range(16)))
    with pytest.raises(TransportError, match="record"):
        loop.sender_pool.collect_releases()


def test_an_owner_that_has_ended_is_no_error(loop):
    arrived = loop.hop.transfer(np.arange(LARGE))
    read_fd, write_fd = make_byte_pipe()
    os.dup2(read_fd, loop.release_pipes[0][0])  # the last read end of the owner's pipe
    os.close(read_fd)
    os.close(write_fd)
    del arrived
    loop.receiver_pool.flush_releases()
    assert loop.receiver_pool.lease_count == 0


def test_a_full_arena_reports_its_use_and_recovers_after_releases():
    processes = Processes(2, limit_bytes=1 << 20)
    with processes.stack:
        source, reader = processes.pools
        blocks = [source.allocate(200_000) for _ in range(4)]
        with pytest.raises(ArenaFullError, match=r"of the 1048576 bytes"):
            source.allocate(200_000)
        reader.release_block(0, blocks[2])
        reader.flush_releases()
        assert source.allocate(200_000) == blocks[2]


def test_live_bytes_are_published_whenever_they_change(loop):
    published = []
    loop.sender_pool.on_live_bytes = published.append
    loop.hop.send(np.zeros(LARGE))
    assert published[-1] == loop.sender_pool.arena.allocator.live_bytes > 0
    loop.hop.receive()
    loop.settle()
    assert published[-1] == 0
    loop.sender_pool.loan(5000)
    loop.sender_pool.flush_releases()
    assert published[-1] == 0


def test_a_loan_without_an_own_arena_raises():
    processes = Processes(2)
    with processes.stack, pytest.raises(TransportError, match="no shared memory to send from"):
        processes.pools[1].loan(100)


def test_a_large_block_that_came_back_is_used_before_those_that_are_free_for_long(loop):
    """It is still in the cache."""
    sender, receiver = loop.pools
    loans = [sender.loan(1 << 20) for _ in range(4)]
    del loans
    sender.flush_releases()
    loop.hop.send_from([loaned_array(sender, (1 << 20,))])
    arrived = loop.hop.receive()
    offset = address(arrived) - receiver._mappings[0].address
    del arrived
    receiver.flush_releases()
    assert sender.loan(1 << 20).block_id == (0, offset)
