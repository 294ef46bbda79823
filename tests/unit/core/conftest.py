"""A folder with files that targets name."""

import sys

import pytest

OPS = """
import dataclasses
LOADS = []
LOADS.append(1)
CONSTANT = 7
def decode(item, quality=1):
    return item, quality
def halves(item):
    yield item
class Resize:
    def __init__(self, size, inner=None):
        self.size, self.inner = size, inner
    def __call__(self, item):
        return item * self.size
    @classmethod
    def load(cls, size):
        return cls(size + 100)
class Many:
    def __call__(self, item):
        yield item
@dataclasses.dataclass
class Point:
    x: int
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "ops.py").write_text(OPS, encoding="utf-8")
    (tmp_path / "broken_target.py").write_text("import surely_not_installed\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path
