"""The fingerprints of a script are the same in every process, whatever the hash seed, the file and its name."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SCRIPT = """
import dataclasses, enum, functools, json, math, re, sys
from pathlib import Path
from typing import NamedTuple
import numpy as np
from stagepipe.fingerprint import compute_fingerprint, describe_fingerprint

NAMES = {"cat", "dog", "bird", "fish", "horse"}
LABELS = frozenset(NAMES)
TABLE = {name: len(name) for name in NAMES}
WEIGHTS = np.arange(6.0).reshape(2, 3)

class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

@dataclasses.dataclass
class Options:
    mode: Mode = Mode.FAST
    names: set = dataclasses.field(default_factory=set)

class Pair(NamedTuple):
    a: int = 1

class Base:
    registry = {}
    def scale(self, x): return x * WEIGHTS.sum() * math.pi

class Resize(Base):
    def __init__(self, size, names):
        self.size, self.names, self.rng = size, names, np.random.default_rng()
    @property
    def area(self): return self.size ** 2
    @staticmethod
    def helper(x): return x in {"a", "b", "c", "d", "e"}
    @functools.cached_property
    def table(self): return dict(TABLE)
    def __call__(self, item):
        return [self.scale(part) for part in item if super().scale(part) and self.helper(part)]

def count(item): return count(item - 1) if item else len(NAMES | LABELS)

def make(size):
    def inner(item, *, mode=Mode.SLOW):
        try:
            return json.dumps({name: count(item) for name in TABLE}) if re.match("a", item) else size
        except (KeyError, ValueError):
            return Options()
    return inner

values = [
    make(3), Resize(3, NAMES), Resize, Resize(4, LABELS).__call__, functools.partial(make, size={"a", "b", "c"}), count,
    Options(Mode.SLOW, {"x", "y", "z"}), Mode.FAST, Pair(2), Pair, {("a", 1): {"b", "c", "d"}, "e": LABELS},
    re.compile("a"), Path("a"), WEIGHTS,
]
for value in values:
    fingerprint = compute_fingerprint(value)
    assert fingerprint.unknown is None, fingerprint.unknown
    print(json.dumps(describe_fingerprint(fingerprint, "value")), fingerprint.digest.hex())
"""


@pytest.mark.timeout(120)
def test_processes_with_other_hash_seeds_and_files_agree(tmp_path):
    outputs = []
    for seed, beginning in (("1", ""), ("2", "# moved\n\n")):
        path = tmp_path / f"script{seed}.py"
        path.write_text(beginning + SCRIPT)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, path], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert not done.returncode, done.stderr[-3000:]
        outputs.append(done.stdout.splitlines())
    assert len(set(outputs[0])) == 14
    assert outputs[0] == outputs[1]
