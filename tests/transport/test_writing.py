"""A stage cannot write into what it receives; the training loop, and who asks for a private copy, can."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from stagepipe.transport import Policy
from tests.transport.loop import LARGE, Loop, lies_in


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
