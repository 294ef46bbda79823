"""A block stays taken as long as anybody looks at it, and not a moment longer; its owner hears of it."""

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
from stagepipe.transport import Policy, make_byte_pipe
from tests.transport.loop import LARGE, Line, Loop, Processes, address


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
def test_a_block_is_held_by_the_last_view_of_it(name):
    loop = Loop(Policy(2048), readonly=False)
    with loop.stack:
        array = loop.hop.carry(np.arange(LARGE))
        view = VIEWS[name](array)
        del array
        assert loop.settle() > 0
        del view
        if name == "in a cycle":
            gc.collect()
        assert loop.settle() == 0


def test_a_block_is_used_again_only_after_the_last_view_of_it(loop):
    views = []
    for number in range(20):
        arrived = loop.hop.carry(np.full(LARGE, number, np.int32))
        views.append(arrived[number:][:100])
        del arrived
        loop.settle()
    assert [set(view.tolist()) for view in views] == [{number} for number in range(20)]
    assert len({address(view) // (4 * LARGE) for view in views}) > 1
    views.clear()
    loop.settle()
    ends = loop.before.arena.allocator.end
    for _ in range(50):
        loop.hop.carry(np.zeros(LARGE, np.int32))
        loop.settle()
    assert loop.before.arena.allocator.end == ends, "blocks that came back are used before fresh ones"


def test_what_is_kept_outlives_the_memory_of_its_process():
    """The last batch of a run stays readable when the pipeline is closed. In a process of its own: it may crash."""
    code = """
        import gc, numpy as np, torch
        from stagepipe.transport import Policy
        from tests.transport.loop import Loop
        loop = Loop(Policy(2048))
        array, tensor = loop.hop.carry([np.arange(100_000), torch.arange(100_000)])
        loan = np.ndarray(9000, np.uint8, loop.before.loan(9000))
        loop.stack.close()
        del loop
        gc.collect()
        print(int(array.sum()) == int(tensor.sum()) == sum(range(100_000)), loan.fill(3), loan.sum())
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "None", "27000"]), done.stderr


def test_views_may_die_in_any_thread(loop):
    received = [loop.hop.carry(np.full(5000, number)) for number in range(40)]
    threads = [threading.Thread(target=received[at::4].clear) for at in range(4)]
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
def test_nothing_leaks_whatever_is_sent_kept_passed_on_and_dropped(items, data):
    line = Line(Policy(data.draw(st.sampled_from([1, 256, 2048]))))
    with line.stack:
        kept = []
        for number, item in enumerate(items):
            line.first.send(item, key=(number,))
            box = [line.first.receive()]
            if data.draw(st.booleans()):
                kept.append(box[0])
            if data.draw(st.booleans()):
                line.second.send_from(box, key=(number,))
                arrived = line.second.receive()
                assert [a.tobytes() for a in arrived] == [a.tobytes() for a in item]
                if data.draw(st.booleans()):
                    kept.append(arrived)
                del arrived
            box.clear()
        del box
        kept.clear()
        assert line.settle() == 0
        assert [memory.leased for memory in line.memories] == [0, 0, 0]
        assert not any(memory._live for memory in line.memories)


# ---------------------------------------------------------------------------------------------- records


def test_a_full_return_pipe_holds_nobody_up_and_loses_nothing():
    processes = Processes(3)
    with processes.stack:
        source, other, reader = processes.memories
        blocks = [source.take(600) for _ in range(10_000)]
        elsewhere = other.take(600)
        for block in blocks:
            reader.refuse(0, block)
        reader.refuse(1, elsewhere)
        reader.flush()
        assert reader.leased > 0, "the pipe does not take ten thousand records, and nobody reads it"
        other.collect()
        assert other.arena.allocator.live == 0, "one owner that does not read does not keep another's blocks"
        while reader.leased:
            source.collect()
            reader.flush()
        source.collect()
        assert source.arena.allocator.live == 0


def test_a_block_that_cannot_be_retained_is_copied(line):
    line.first.send(np.arange(LARGE))
    kept = line.first.receive()
    while True:  # the source does not read what it is told
        try:
            os.write(line.returns[0][1], bytes(16))
        except BlockingIOError:
            break
    line.second.send(kept)
    assert line.second.sender.counts.copied_bytes >= kept.nbytes
    assert (line.second.receive() == kept).all()


def test_a_record_that_is_damaged_is_refused(loop):
    os.write(loop.returns[0][1], bytes(range(16)))
    with pytest.raises(TransportError, match="record"):
        loop.before.collect()


def test_an_owner_that_is_gone_is_no_error(loop):
    arrived = loop.hop.carry(np.arange(LARGE))
    read_fd, write_fd = make_byte_pipe()
    os.dup2(read_fd, loop.returns[0][0])  # the last read end of the owner's pipe
    os.close(read_fd)
    os.close(write_fd)
    del arrived
    loop.after.flush()
    assert loop.after.leased == 0


def test_a_full_arena_says_how_full_and_works_again_when_blocks_come_back():
    processes = Processes(2, limit=1 << 20)
    with processes.stack:
        source, reader = processes.memories
        blocks = [source.take(200_000) for _ in range(4)]
        with pytest.raises(ArenaFullError, match=r"of the 1048576 bytes"):
            source.take(200_000)
        reader.refuse(0, blocks[2])
        reader.flush()
        assert source.take(200_000) == blocks[2]


def test_live_bytes_are_published_whenever_they_change(loop):
    published = []
    loop.before.publish_live = published.append
    loop.hop.send(np.zeros(LARGE))
    assert published[-1] == loop.before.arena.allocator.live > 0
    loop.hop.receive()
    loop.settle()
    assert published[-1] == 0
    loop.before.loan(5000)
    loop.before.flush()
    assert published[-1] == 0


def test_a_process_without_shared_memory_says_so():
    processes = Processes(2)
    with processes.stack, pytest.raises(TransportError, match="no shared memory of its own"):
        processes.memories[1].loan(100)
