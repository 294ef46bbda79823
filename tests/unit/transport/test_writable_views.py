"""A stage cannot write to what it receives. The training loop and stages with `mutable: true` can."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from stagepipe.transport import TransportRule
from tests.support.transport.hops import LARGE, LoopbackHop, is_in_arena


def test_received_arrays_are_read_only_in_a_stage(loop):
    arrived = loop.hop.transfer(
        {"large": np.arange(LARGE), "small": np.arange(3), "fortran": np.ones((90, 90), order="F")}
    )
    for array in arrived.values():
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_writing_despite_the_flag_is_a_segmentation_fault_in_a_stage():
    code = (
        "import torch; from stagepipe.transport import TransportRule\n"
        "from tests.support.transport.hops import TwoHops\n"
        "line = TwoHops(TransportRule(threshold_bytes=2048))\n"
        "line.first.send(torch.ones(90_000)); line.first.receive()[0] = 2"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == -11, done.stderr


@pytest.mark.parametrize(
    "receiver_options", [{"readonly": False}, {"copy_all": True, "readonly": False}, {"copy_all": True}], ids=str
)
def test_the_training_loop_and_mutable_stages_may_write(receiver_options):
    loop = LoopbackHop(TransportRule(threshold_bytes=2048), **receiver_options)
    with loop.stack:
        item = {"large": np.zeros(LARGE), "small": np.zeros(3), "tensor": torch.zeros(LARGE)}
        arrived = loop.hop.transfer(item)
        for array in arrived.values():
            array[:] = 1
        assert is_in_arena(arrived["large"], loop.receiver_pool, 0) is not receiver_options.get("copy_all", False)
        assert not item["large"].any()
        assert not item["tensor"].any()


def test_copies_hold_no_block():
    loop = LoopbackHop(TransportRule(threshold_bytes=2048), copy_all=True)
    with loop.stack:
        arrived = loop.hop.transfer({"large": np.zeros(LARGE), "tensor": torch.zeros(LARGE), "text": "x" * 9000})
        assert loop.settle() == 0
        assert loop.hop.receiver.copied_out_items == 1
        assert arrived["large"].shape == (LARGE,)


def test_the_training_loop_gets_a_copy_of_a_shared_block(line):
    line.first.send(np.zeros(LARGE))
    kept = line.first.receive()
    line.second.send(kept)
    arrived = line.second.receive()
    arrived[:] = 5
    assert not kept.any()
    assert line.second.receiver.copied_out_items == 1


def test_no_tensor_warns_that_its_array_is_read_only(any_transfer, recwarn):
    any_transfer.hop.transfer([torch.zeros(3), torch.zeros(LARGE), torch.zeros(90, 90).bfloat16()])
    torch.from_numpy(any_transfer.hop.transfer(np.empty((0, 4))))
    assert [str(warning.message) for warning in recwarn] == []
