"""Another process resumes pipelines of functions and objects from Python, unless they do something else there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stagepipe import Pipeline, UsageError
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import functools, json, sys
import numpy as np
from stagepipe import Pipeline

LABELS = {"cat", "dog", "bird", "fish"}
OFFSET = 5
TABLE = np.arange(20) * 3

class Scale:
    def __init__(self, factor):
        self.factor, self.names = factor, {name: len(name) for name in LABELS}
    def __call__(self, number):
        return number * self.factor + len(self.names)

def shift(number, by=1):
    def apply(value):
        return value + by + OFFSET if LABELS else 0
    return int(apply(TABLE[number]))

stages = [
    {"name": "shift", "uses": functools.partial(shift, by=2), "workers": 2},
    {"name": "scale", "uses": Scale(FACTOR)},
    {"name": "add", "uses": lambda number: number + len(LABELS)},
    {"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": 2}},
]
with Pipeline({"source": {"uses": list(range(20))}, "stages": stages}) as pipeline:
    if sys.argv[1:]:
        pipeline.load_state_dict(json.loads(sys.argv[1]))
    items = iter(pipeline)
    found = [next(items).tolist() for _ in range(3)]
    print(json.dumps([found, pipeline.state_dict()]))
"""


def run(folder: Path, seed: str, factor: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = folder / f"script{seed}.py"
    path.write_text(SCRIPT.replace("FACTOR", str(factor)))
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_another_process_with_another_hash_seed_resumes(tmp_path):
    first = run(tmp_path, "1", 2)
    assert not first.returncode, first.stderr
    found, state = json.loads(first.stdout)
    second = run(tmp_path, "2", 2, json.dumps(state))
    assert not second.returncode, second.stderr
    rest, _ = json.loads(second.stdout)
    expected = [(number * 3 + 2 + 5) * 2 + 4 + 4 for number in range(12)]
    assert [number for batch in found + rest for number in batch] == expected
    changed = run(tmp_path, "3", 9, json.dumps(state))
    assert changed.returncode
    assert "stages.scale.uses: attribute `factor`: saved 2, now 9" in changed.stderr


def test_an_open_file_travels_to_workers_but_is_not_compared(tmp_path):
    (tmp_path / "words.txt").write_text("a\nb\n")
    with (tmp_path / "words.txt").open() as file:
        config = {"source": {"uses": range(5)}, "stages": [{"name": "read", "uses": lambda n: (n, file.name != "")}]}
        with Pipeline(config) as pipeline:
            items = iter(pipeline)
            assert next(items) == (0, True)
            state = pipeline.state_dict()
            expected = r"stages\.read\.uses: closure value `file`: cannot pickle '(_io\.)?TextIOWrapper'"
            with pytest.raises(UsageError, match=expected):
                pipeline.load_state_dict(state)
            pipeline.load_state_dict(state, allow_changed=True)
            assert [number for number, _ in pipeline] == [1, 2, 3, 4]
