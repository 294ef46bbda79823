"""The index of records: 8 bytes each, mapped from the cache, built once however many processes need it."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from stagepipe.sources import JsonlSource, source_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "stagepipe" / "sources"


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    built = []
    find_bounds = JsonlSource.find_bounds

    def find(self, file):
        built.append(file.name)
        return find_bounds(self, file)

    monkeypatch.setattr(JsonlSource, "find_bounds", find)
    return built


def test_a_large_file_is_indexed_once_until_it_changes(cache, monkeypatch):
    monkeypatch.setattr(source_cache, "_MIN_CACHED_BYTES", 10)
    built = count_builds(monkeypatch)
    Path("a.jsonl").write_text("1\n2\n3\n44\n5\n")
    for _ in range(2):
        assert list(JsonlSource("a.jsonl")) == [1, 2, 3, 44, 5]
    assert built == ["a.jsonl"]
    Path("a.jsonl").write_text("1\n2\n3\n4\n5\n6")
    assert list(JsonlSource("a.jsonl")) == [1, 2, 3, 4, 5, 6]
    assert built == ["a.jsonl"] * 2
    assert len(list(cache.glob("*.npy"))) == 2


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY damaged"])
def test_a_damaged_index_is_built_again(cache, monkeypatch, damage):
    monkeypatch.setattr(source_cache, "_MIN_CACHED_BYTES", 0)
    Path("a.jsonl").write_text("1\n2\n")
    assert len(JsonlSource("a.jsonl")) == 2
    (index,) = cache.glob("*.npy")
    index.write_bytes(damage)
    assert list(JsonlSource("a.jsonl")) == [1, 2]


def test_without_a_cache_folder_the_index_stays_in_memory(monkeypatch):
    monkeypatch.setattr(source_cache, "_MIN_CACHED_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    Path("a.jsonl").write_text("1\n2\n")
    assert list(JsonlSource("a.jsonl")) == [1, 2]


def test_a_million_lines_cost_at_most_16_bytes_each():
    Path("a.jsonl").write_bytes(b"12345\n" * 1_000_000)
    source = JsonlSource("a.jsonl")
    assert len(source) == 1_000_000  # builds the index
    again = JsonlSource("a.jsonl")
    tracemalloc.start()
    try:
        assert again.__getitems__([0, 999_999]) == [12345, 12345]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000, "the index is mapped, not read"
    assert again._index._bounds.nbytes <= 8 * 1_000_001


def test_entries_unused_for_long_are_removed(cache, monkeypatch):
    monkeypatch.setattr("stagepipe.core.output._MAX_UNUSED_S", -1.0)
    source_cache.open_cached_array("one", lambda: np.zeros(1, np.int64))
    source_cache.open_cached_array("two", lambda: np.ones(1, np.int64))
    assert [path.name for path in cache.glob("*.npy")] == ["two.npy"]
