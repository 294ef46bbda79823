"""What is recorded of a training program."""

import os
import subprocess
import sys
from pathlib import Path

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
