"""Files behind fsspec are found, read in blocks and indexed as local ones are."""

import sys
import zipfile
from pathlib import Path

import fsspec
import pytest

from stagepipe import UsageError
from stagepipe.sources import FilesSource, JsonlSource, ParquetSource, TextSource, WebdatasetSource, stored_files
from tests.support.source_cases import COUNT, write_parquet, write_webdataset


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file_system = fsspec.filesystem("memory")
    file_system.store.clear()
    yield file_system
    file_system.store.clear()


@pytest.mark.parametrize("block_bytes", [3, 7, 1000])
def test_lines_are_read_through_blocks(memory, monkeypatch, block_bytes):
    monkeypatch.setattr(stored_files, "REMOTE_BLOCK_BYTES", block_bytes)
    memory.pipe({"/d/a.txt": b"one\ntwo\nthree", "/d/b.txt": b"a much longer line of text\n", "/d/c.md": b"no"})
    source = TextSource("memory://d/*.txt")
    texts = ["one", "two", "three", "a much longer line of text"]
    assert [item["text"] for item in source] == texts
    assert [item["text"] for item in source.__getitems__([3, 0, 2])] == [texts[3], texts[0], texts[2]]


def test_errors_name_the_url(memory):
    memory.pipe("/d/a.jsonl", b"1\n{\n")
    with pytest.raises(ValueError, match=r"jsonl: memory:///?d/a\.jsonl:2: column"):
        JsonlSource("memory://d/a.jsonl")[1]
    with pytest.raises(ValueError, match=r"no file matches 'memory://d/\*\.csv'; check the path"):
        JsonlSource("memory://d/*.csv")
    with pytest.raises(ValueError, match="cannot open 'nosuch://d/a': Protocol not known: nosuch"):
        JsonlSource("nosuch://d/a")


def test_tables_and_shards_are_read_from_anywhere(memory, tmp_path):
    for write in (write_parquet, write_webdataset):
        write(tmp_path)
    memory.put(f"{tmp_path}/*.parquet", "/p/")
    memory.put(f"{tmp_path}/*.tar", "/t/")
    assert [row["id"] for row in ParquetSource("memory://p/*.parquet")] == list(range(COUNT))
    assert [sample["id.cls"] for sample in WebdatasetSource("memory://t/*.tar")] == list(range(COUNT))


def test_files_are_listed_labelled_and_read(memory):
    memory.pipe({"/d/cat/0.jpg": b"0", "/d/dog/1.jpg": b"1"})
    source = FilesSource("memory://d/**/*.jpg", read=True, labels="folder")
    assert [(item["data"], item["label"]) for item in source] == [(b"0", "cat"), (b"1", "dog")]
    assert [fsspec.open(item["path"]).open().read() for item in source] == [b"0", b"1"]


def test_urls_match_as_paths_do(memory, caplog, tmp_path):
    memory.pipe(
        {"/d/a.txt": b"a", "/d/.hidden.txt": b"h", "/d/.cache/a.txt": b"c", "/d/b[1].txt": b"b", "/d/b1.txt": b"1"}
    )
    assert [item["text"] for item in TextSource("memory://d/**/*.txt")] == ["a", "1", "b"]
    assert [item["text"] for item in TextSource(["memory://d/b[1].txt", "memory://d/.h*.txt"])] == ["h", "b"]
    with pytest.raises(ValueError, match=r"no file matches 'memory://d/typo\*'"):
        FilesSource(["memory://d/a.txt", "memory://d/typo*"])
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").symlink_to("lost")
    assert len(TextSource(f"file://{tmp_path}/*.txt")) == 1
    assert "a link that leads nowhere is left out" in caplog.text


def test_files_of_one_name_in_two_archives_are_two(tmp_path):
    for name in ("x", "y"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("a.jsonl", f'"{name}"')
    urls = [f"zip://a.jsonl::{tmp_path}/x.zip", f"zip://*.jsonl::{tmp_path}/y.zip", f"zip://*.jsonl::{tmp_path}/x.zip"]
    assert list(JsonlSource(urls)) == ["x", "y"]
    assert [item["data"] for item in FilesSource(urls, read=True)] == [b'"x"', b'"y"']


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"jsonl: s3://b/a\.jsonl needs fsspec: pip install 'fsspec>=[\d.]+'"):
        JsonlSource("s3://b/a.jsonl")
