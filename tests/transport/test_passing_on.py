"""What lies in shared memory already is described, not copied, and what may still change is copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from stagepipe.transport import Policy
from tests.transport.loop import LARGE, Line, address, lies_in, loaned, loaned_tensor


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
