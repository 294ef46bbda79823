"""A block stays taken as long as anybody looks at it, and not a moment longer; what lies in one is not copied."""

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
from torchvision import tv_tensors

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.transport import Policy, make_byte_pipe
from tests.transport.loop import Line, Loop, Processes, address, lies_in

LARGE = 100_000


def loaned(memory, shape=(LARGE,), dtype=np.uint8):
    """What `stagepipe.empty` gives a stage."""
    return np.ndarray(shape, dtype, memory.loan(int(np.prod(shape)) * np.dtype(dtype).itemsize))


def loaned_tensor(memory, shape, dtype=torch.float32):
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return torch.frombuffer(memory.loan(nbytes), dtype=dtype).reshape(shape)


# ---------------------------------------------------------------------------------------------- no copies


def test_what_is_received_lies_in_the_senders_memory(loop):
    arrived = loop.hop.carry({"array": np.arange(LARGE), "tensor": torch.arange(LARGE), "small": np.arange(3)})
    assert lies_in(arrived["array"], loop.after, 0)
    assert lies_in(arrived["tensor"], loop.after, 0)
    assert not lies_in(arrived["small"], loop.after, 0)


@pytest.mark.parametrize("make", [loaned, loaned_tensor])
def test_a_loan_that_is_returned_is_described_not_copied(loop, make):
    box = [{"x": make(loop.before, (100, 500))}]
    box[0]["x"][:] = 7
    here = address(box[0]["x"]) - loop.before.arena.mapping.address
    loop.hop.send_from(box)
    arrived = loop.hop.receive()["x"]
    assert address(arrived) - loop.after._mappings[0].address == here
    assert (arrived == 7).all()
    assert (loop.hop.sender.counts.copied_bytes, loop.hop.sender.counts.zero_copy_bytes) == (0, arrived.nbytes)
    del arrived
    assert loop.settle() == 0


@pytest.mark.parametrize(
    "view", [lambda a: a[10:90], lambda a: a.reshape(-1), lambda a: a[3], lambda a: a.view(np.int8)]
)
def test_a_contiguous_view_of_a_loan_is_described_as_well(loop, view):
    loop.hop.send_from([view(loaned(loop.before, (100, 5000)))])
    loop.hop.receive()
    assert loop.hop.sender.counts.copied_bytes == 0
    assert loop.settle() == 0


def test_a_strided_view_of_a_loan_is_copied_once_and_tight(loop):
    array = loaned(loop.before, (100, 5000))
    array[:] = 3
    box = [array[:, ::2]]
    del array
    loop.hop.send_from(box)
    arrived = loop.hop.receive()
    assert arrived.flags.c_contiguous
    assert (arrived == 3).all()
    assert loop.hop.sender.counts.copied_bytes == pytest.approx(arrived.nbytes, abs=64)
    del arrived
    assert loop.settle() == 0


def test_a_loan_that_the_stage_still_holds_is_copied_so_later_writes_do_not_show(loop):
    buffer = loaned(loop.before)
    for number in range(5):
        buffer[:] = number
        loop.hop.send({"x": buffer})
    buffer[:] = 99
    assert [int(loop.hop.receive()["x"].max()) for _ in range(5)] == [0, 1, 2, 3, 4]
    del buffer
    assert loop.settle() == 0


def test_a_loan_held_through_a_tensor_is_copied_too(loop):
    tensor = loaned_tensor(loop.before, (100, 100))
    tensor[:] = 1
    loop.hop.send({"x": tensor[:50]})
    tensor[:] = 2
    assert (loop.hop.receive()["x"] == 1).all()
    del tensor
    assert loop.settle() == 0


@pytest.mark.parametrize("kind", ["array", "tensor", "image tensor", "transposed tensor", "fields"])
def test_what_is_passed_on_copies_nothing(line, kind):
    make = {
        "array": lambda: np.arange(LARGE),
        "tensor": lambda: torch.arange(LARGE),
        "image tensor": lambda: tv_tensors.Image(torch.ones(3, 200, 300)),
        "transposed tensor": lambda: torch.ones(200, 300).T,
        "fields": lambda: {"a": np.arange(LARGE), "b": [torch.arange(LARGE)], "c": 3},
    }
    line.first.send(make[kind]())
    box = [line.first.receive()]
    line.second.send_from(box)
    arrived = line.second.receive()
    counts = line.second.sender.counts
    assert counts.copied_bytes == 0
    assert counts.zero_copy_bytes > LARGE
    flat = arrived["a"] if kind == "fields" else arrived
    assert lies_in(flat, line.memories[2], 0)  # in the source's arena: the stage between is out of it
    assert line.memories[1].arena.allocator.peak == 0
    del arrived, flat
    assert line.settle() == 0


def test_an_item_that_the_stage_keeps_is_passed_on_uncopied_and_stays_as_long_as_either_needs_it(line):
    line.first.send(np.arange(LARGE))
    kept = line.first.receive()
    line.second.send(kept)
    arrived = line.second.receive()
    assert line.second.sender.counts.copied_bytes == 0
    taken = line.memories[0].arena.allocator.live
    assert taken > LARGE
    del arrived
    line.settle()
    assert line.memories[0].arena.allocator.live == taken
    assert (kept == np.arange(LARGE)).all()
    del kept
    assert line.settle() == 0


def test_two_parts_of_one_block_reach_two_receivers_and_it_is_free_after_the_last():
    line = Line(Policy(2048), readonly=True)  # two stages, which share a block; the training loop would copy it
    with line.stack:
        line.first.send(np.arange(LARGE).reshape(2, -1))
        whole = line.first.receive()
        for part in whole:
            line.second.send(part)
        del whole, part
        one, other = line.second.receive(), line.second.receive()
        assert one[-1] + 1 == other[0]
        assert line.second.sender.counts.copied_bytes == 0
        del one
        assert line.settle() > 0
        del other
        assert line.settle() == 0


def test_a_block_received_twice_is_still_known_when_one_of_its_leases_dies(line):
    memory = line.memories[2]
    one, two = (memory.lease(0, 0, LARGE, shared=True) for _ in range(2))
    del one
    memory.flush()
    assert memory.find(address(two), LARGE) is two


def test_two_leases_on_one_block_in_one_item_travel_as_one():
    line = Line(Policy(2048))
    with line.stack:
        line.first.send(np.arange(LARGE))
        source, middle, _ = line.memories
        kept = line.first.receive()
        assert source.arena is not None
        block = address(kept) - middle._mappings[0].address
        source.arena.allocator.add(block, 1)  # as if a fan had sent it twice
        again = np.asarray(middle.lease(0, block, kept.nbytes, shared=True)).view(kept.dtype)
        box = [{"one": kept, "two": again}]
        del kept, again
        line.second.send_from(box)
        assert line.second.sender.counts.copied_bytes == 0
        arrived = line.second.receive()
        assert (arrived["one"] == arrived["two"]).all()
        del arrived
        assert line.settle() == 0


def test_a_tensor_in_one_of_two_leases_on_a_block_is_sent_from_where_it_lies():
    line = Line(Policy(2048))
    with line.stack:
        source, middle, _ = line.memories
        line.first.send(np.arange(LARGE))
        whole = line.first.receive()
        source.arena.allocator.add(0, 1)  # as if a part of it had come in a second packet
        shorter = middle.lease(0, 0, whole.nbytes // 2, shared=True)
        tensor = torch.from_dlpack(torch.frombuffer(whole.base, dtype=torch.int64))[
            LARGE // 4 : LARGE // 4 + LARGE // 2
        ]
        assert tensor.nbytes == shorter.nbytes
        line.second.send(tensor)
        assert torch.equal(line.second.receive(), tensor)


def test_a_small_piece_of_a_block_is_copied_so_that_it_does_not_keep_the_block(line):
    line.first.send({"labels": np.arange(50_000)})
    box = [line.first.receive()["labels"][:4]]
    line.second.send_from(box)
    kept = line.second.receive()
    assert line.settle() == 0
    assert kept.tolist() == [0, 1, 2, 3]


# ---------------------------------------------------------------------------------------------- how long it is held


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


# ---------------------------------------------------------------------------------------------- who may write


def test_a_stage_cannot_write_into_what_it_receives(loop):
    arrived = loop.hop.carry(
        {"large": np.arange(LARGE), "small": np.arange(3), "fortran": np.ones((90, 90), order="F")}
    )
    for array in arrived.values():
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_write_past_the_flag_is_a_segmentation_fault_in_a_stage():
    code = (
        "import torch; from stagepipe.transport import Policy; from tests.transport.loop import Loop, Line\n"
        "line = Line(Policy(2048)); line.first.send(torch.ones(90_000)); line.first.receive()[0] = 2"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == -11, done.stderr


@pytest.mark.parametrize(
    "reading", [{"readonly": False}, {"private": True, "readonly": False}, {"private": True}], ids=str
)
def test_the_training_loop_and_mutable_stages_may_write(reading):
    loop = Loop(Policy(2048), **reading)
    with loop.stack:
        item = {"large": np.zeros(LARGE), "small": np.zeros(3), "tensor": torch.zeros(LARGE)}
        arrived = loop.hop.carry(item)
        for array in arrived.values():
            array[:] = 1
        assert lies_in(arrived["large"], loop.after, 0) is not reading.get("private", False)
        assert not item["large"].any()
        assert not item["tensor"].any()


def test_private_copies_hold_no_block():
    loop = Loop(Policy(2048), private=True)
    with loop.stack:
        arrived = loop.hop.carry({"large": np.zeros(LARGE), "tensor": torch.zeros(LARGE), "text": "x" * 9000})
        assert loop.settle() == 0
        assert loop.hop.receiver.copied_out == 1
        assert arrived["large"].shape == (LARGE,)


def test_the_training_loop_gets_a_copy_of_what_somebody_else_still_holds(line):
    line.first.send(np.zeros(LARGE))
    kept = line.first.receive()
    line.second.send(kept)
    arrived = line.second.receive()
    arrived[:] = 5
    assert not kept.any()
    assert line.second.receiver.copied_out == 1


def test_no_tensor_warns_that_its_array_is_read_only(any_way, recwarn):
    any_way.hop.carry([torch.zeros(3), torch.zeros(LARGE), torch.zeros(90, 90).bfloat16()])
    torch.from_numpy(any_way.hop.carry(np.empty((0, 4))))
    assert [str(warning.message) for warning in recwarn] == []


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
