"""Arrays in shared memory are forwarded without a copy; arrays that may still change are copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from stagepipe.transport import TransportRule
from tests.support.transport.hops import LARGE, TwoHops, address, is_in_arena, loaned_array, loaned_tensor


def test_received_arrays_are_in_the_senders_arena(loop):
    arrived = loop.hop.transfer({"array": np.arange(LARGE), "tensor": torch.arange(LARGE), "small": np.arange(3)})
    assert is_in_arena(arrived["array"], loop.receiver_pool, 0)
    assert is_in_arena(arrived["tensor"], loop.receiver_pool, 0)
    assert not is_in_arena(arrived["small"], loop.receiver_pool, 0)


@pytest.mark.parametrize("make", [loaned_array, loaned_tensor])
def test_a_returned_loan_is_not_copied(loop, make):
    item_box = [{"x": make(loop.sender_pool, (100, 500))}]
    item_box[0]["x"][:] = 7
    offset = address(item_box[0]["x"]) - loop.sender_pool.arena.mapping.address
    loop.hop.send_from(item_box)
    arrived = loop.hop.receive()["x"]
    assert address(arrived) - loop.receiver_pool._mappings[0].address == offset
    assert (arrived == 7).all()
    assert (loop.hop.sender.counts.copied_bytes, loop.hop.sender.counts.zero_copy_bytes) == (0, arrived.nbytes)
    del arrived
    assert loop.settle() == 0


@pytest.mark.parametrize(
    "view", [lambda a: a[10:90], lambda a: a.reshape(-1), lambda a: a[3], lambda a: a.view(np.int8)]
)
def test_a_contiguous_view_of_a_loan_is_not_copied(loop, view):
    loop.hop.send_from([view(loaned_array(loop.sender_pool, (100, 5000)))])
    loop.hop.receive()
    assert loop.hop.sender.counts.copied_bytes == 0
    assert loop.settle() == 0


def test_a_strided_view_of_a_loan_is_copied_contiguously(loop):
    array = loaned_array(loop.sender_pool, (100, 5000))
    array[:] = 3
    item_box = [array[:, ::2]]
    del array
    loop.hop.send_from(item_box)
    arrived = loop.hop.receive()
    assert arrived.flags.c_contiguous
    assert (arrived == 3).all()
    assert loop.hop.sender.counts.copied_bytes == pytest.approx(arrived.nbytes, abs=64)
    del arrived
    assert loop.settle() == 0


def test_a_loan_still_held_is_copied_so_that_later_writes_do_not_show(loop):
    buffer = loaned_array(loop.sender_pool)
    for number in range(5):
        buffer[:] = number
        loop.hop.send({"x": buffer})
    buffer[:] = 99
    assert [int(loop.hop.receive()["x"].max()) for _ in range(5)] == [0, 1, 2, 3, 4]
    del buffer
    assert loop.settle() == 0


def test_a_loan_held_through_a_tensor_is_copied_too(loop):
    tensor = loaned_tensor(loop.sender_pool, (100, 100))
    tensor[:] = 1
    loop.hop.send({"x": tensor[:50]})
    tensor[:] = 2
    assert (loop.hop.receive()["x"] == 1).all()
    del tensor
    assert loop.settle() == 0


@pytest.mark.parametrize("kind", ["array", "tensor", "image tensor", "transposed tensor", "fields"])
def test_forwarding_copies_nothing(line, kind):
    make = {
        "array": lambda: np.arange(LARGE),
        "tensor": lambda: torch.arange(LARGE),
        "image tensor": lambda: tv_tensors.Image(torch.ones(3, 200, 300)),
        "transposed tensor": lambda: torch.ones(200, 300).T,
        "fields": lambda: {"a": np.arange(LARGE), "b": [torch.arange(LARGE)], "c": 3},
    }
    line.first.send(make[kind]())
    item_box = [line.first.receive()]
    line.second.send_from(item_box)
    arrived = line.second.receive()
    counts = line.second.sender.counts
    assert counts.copied_bytes == 0
    assert counts.zero_copy_bytes > LARGE
    flat = arrived["a"] if kind == "fields" else arrived
    assert is_in_arena(flat, line.pools[2], 0)  # in the source's arena, not in that of the stage between
    assert line.pools[1].arena.allocator.peak_bytes == 0
    del arrived, flat
    assert line.settle() == 0


def test_a_kept_item_is_forwarded_without_a_copy_and_lives_until_both_are_done(line):
    line.first.send(np.arange(LARGE))
    kept = line.first.receive()
    line.second.send(kept)
    arrived = line.second.receive()
    assert line.second.sender.counts.copied_bytes == 0
    live_bytes = line.pools[0].arena.allocator.live_bytes
    assert live_bytes > LARGE
    del arrived
    line.settle()
    assert line.pools[0].arena.allocator.live_bytes == live_bytes
    assert (kept == np.arange(LARGE)).all()
    del kept
    assert line.settle() == 0


def test_a_block_forwarded_in_two_parts_is_free_after_the_last():
    line = TwoHops(
        TransportRule(threshold_bytes=2048), readonly=True
    )  # two stages share the block; the training loop would copy it
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


def test_a_block_received_twice_is_still_found_after_one_lease_dies(line):
    memory = line.pools[2]
    one, two = (memory.lease_block(0, 0, LARGE, is_shared=True) for _ in range(2))
    del one
    memory.flush_releases()
    assert memory.find_lease(address(two), LARGE) is two


def test_two_leases_on_one_block_in_one_item_are_sent_as_one():
    line = TwoHops(TransportRule(threshold_bytes=2048))
    with line.stack:
        line.first.send(np.arange(LARGE))
        source, middle, _ = line.pools
        kept = line.first.receive()
        assert source.arena is not None
        block = address(kept) - middle._mappings[0].address
        source.arena.allocator.add_references(block, 1)  # as if a branching stage had sent it twice
        again = np.asarray(middle.lease_block(0, block, kept.nbytes, is_shared=True)).view(kept.dtype)
        item_box = [{"one": kept, "two": again}]
        del kept, again
        line.second.send_from(item_box)
        assert line.second.sender.counts.copied_bytes == 0
        arrived = line.second.receive()
        assert (arrived["one"] == arrived["two"]).all()
        del arrived
        assert line.settle() == 0


def test_a_tensor_in_the_longer_of_two_leases_is_sent_correctly():
    line = TwoHops(TransportRule(threshold_bytes=2048))
    with line.stack:
        source, middle, _ = line.pools
        line.first.send(np.arange(LARGE))
        whole = line.first.receive()
        source.arena.allocator.add_references(0, 1)  # as if a second packet had brought a part of it
        shorter = middle.lease_block(0, 0, whole.nbytes // 2, is_shared=True)
        tensor = torch.from_dlpack(torch.frombuffer(whole.base, dtype=torch.int64))[
            LARGE // 4 : LARGE // 4 + LARGE // 2
        ]
        assert tensor.nbytes == shorter.nbytes
        line.second.send(tensor)
        assert torch.equal(line.second.receive(), tensor)


def test_a_small_part_of_a_block_is_copied_so_that_the_block_is_released(line):
    line.first.send({"labels": np.arange(50_000)})
    item_box = [line.first.receive()["labels"][:4]]
    line.second.send_from(item_box)
    kept = line.second.receive()
    assert line.settle() == 0
    assert kept.tolist() == [0, 1, 2, 3]
