"""The record of a training program, and the comparison of two."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.programs.training.runner import Run, check_loader, compare, compare_rest

RECORDING = Path(__file__).parent / "recording"
TORCH = """
import types
class Module:
    def __call__(self): pass
class Tensor:
    def backward(self): pass
nn = types.SimpleNamespace(Module=Module)
set_num_threads = manual_seed = lambda value: None
"""
SCRIPT = """
import importlib.util
assert importlib.util.find_spec("torch")  # as libraries do that can use torch
import torch
print(torch.nn.Module.__call__.__name__)
"""


def test_a_library_that_looks_for_torch_does_not_end_the_recording(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join(map(str, (RECORDING, tmp_path)))
    environment = {**os.environ, "PYTHONPATH": path, "RECORD": str(tmp_path / "record"), "RECORDED_SCRIPT": str(script)}
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert result.stdout == "record_call\n", result.stderr
    assert (tmp_path / "record").exists()


def load_recording():
    spec = importlib.util.spec_from_file_location("recording", RECORDING / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_different_batches_have_different_digests():
    add = load_recording()._add
    values = [np.zeros(3), np.ones(3), [1], [2], (), [], (1,), {"a": 1}, {"a": 2}, "a", "b", None, 1.5]
    digests = set()
    for value in values:
        digest = hashlib.blake2b()
        add(value, digest)
        digests.add(digest.hexdigest())
    assert len(digests) == len(values)
    with pytest.raises(TypeError, match="a batch has a object, which has no digest"):
        add(object(), hashlib.blake2b())


def test_a_comparison_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="a run has no batches"):
        compare([[]], [[]], "batches")
    assert compare([["a"]], [["a", "b"]], "steps") == "2 steps, the original 1"
    assert compare([["a"], ["b"]], [["a"], ["a"]], "steps") == "the original has other steps in each run"


def make_run(steps):
    return Run(batches=steps, losses=steps, items_per_s=1.0, first_s=1.0, peak_bytes=1)


def test_a_resume_that_begins_again_is_an_error():
    whole = make_run(["a", "b", "c"])
    assert compare_rest(make_run(["b", "c"]), whole) == "the same 2 steps as without the kill"
    assert compare_rest(make_run(["a", "b"]), whole) == "other 2 steps than without the kill"
    for steps in ([], ["a", "b", "c"]):
        with pytest.raises(ValueError, match=f"a resumed run has {len(steps)} steps, a whole one 3"):
            compare_rest(make_run(steps), whole)


def test_a_run_whose_batches_come_from_another_loader_is_an_error():
    check_loader(["loaded", "loaded", "batch x 1", "loss 1", "batch y 1"], is_ours=True)
    check_loader(["batch x 1"], is_ours=False)
    with pytest.raises(ValueError, match="batch 2 came from another loader"):
        check_loader(["loaded", "batch x 1", "batch y 1", "loaded"], is_ours=True)
    with pytest.raises(ValueError, match="the original has a loader of stagepipe"):
        check_loader(["loaded", "batch x 1"], is_ours=False)
