"""Remote files are read whole, or end with an error that names them, whatever faults the store makes."""

import gzip
import io
import itertools
import json
import os
import random
import tarfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stagepipe.sources import FilesSource, JsonlSource, ParquetSource, WebdatasetSource, remote_requests, stored_files
from tests.support import faulty_store
from tests.support.faulty_store import FAULTS, FaultyStore

pytest.importorskip("aiohttp")
COUNT = 150


def make_lines(first: int = 0, last: int = COUNT) -> bytes:
    return b"".join(json.dumps({"id": number, "text": "x" * 100}).encode() + b"\n" for number in range(first, last))


def make_tar() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for number in range(COUNT):
            member = tarfile.TarInfo(f"{number:05d}.cls")
            member.size = 5
            archive.addfile(member, io.BytesIO(f"{number:05d}".encode()))
    return target.getvalue()


def make_parquet() -> bytes:
    target = io.BytesIO()
    text = [os.urandom(100) for _ in range(COUNT)]
    pq.write_table(pa.table({"id": list(range(COUNT)), "text": text}), target, row_group_size=25)
    return target.getvalue()


FILES = {
    "/a.jsonl": make_lines(),
    # A body that is cut between the two members would be a whole file.
    "/a.jsonl.gz": gzip.compress(make_lines(0, 60)) + gzip.compress(make_lines(60, COUNT)),
    "/a.tar": make_tar(),
    "/a.parquet": make_parquet(),
}
KINDS = {
    "a.jsonl": lambda url: [row["id"] for row in JsonlSource(url)],
    "a.jsonl.gz": lambda url: [row["id"] for row in JsonlSource(url)],
    "a.tar": lambda url: [sample["cls"] for sample in WebdatasetSource(url)],
    "a.parquet": lambda url: [row["id"] for row in ParquetSource(url)],
}


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_files, "REMOTE_BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(remote_requests, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(remote_requests, "ANSWER_S", 0.3)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", list(KINDS))
def test_no_fault_of_a_store_loses_or_changes_a_record(name: str, fault: str):
    with FaultyStore(FILES, share=0.3, seed=3, faults=(fault,)) as store:
        assert KINDS[name](f"{store.url}/{name}") == list(range(COUNT))
        assert store.faults[fault]


@pytest.mark.parametrize("fault", ["slow down", "cut", "drop"])
def test_whole_files_are_whole(fault: str):
    with FaultyStore(FILES, seed=1, choose=lambda number, _: fault if number % 2 else None) as store:
        items = list(FilesSource([f"{store.url}/{name[1:]}" for name in FILES], read=True))
    assert {item["path"].removeprefix(store.url): item["data"] for item in items} == FILES


@pytest.mark.parametrize(
    "fault, reason",
    [
        ("slow down", "the last with ClientResponseError: 503"),
        ("cut", "the last with the server sent 4,096 of 8,192 bytes"),
        ("stall", "the last with FSTimeoutError"),
    ],
)
def test_a_server_that_does_not_recover_is_an_error_with_the_url(
    monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
):
    monkeypatch.setattr(remote_requests, "READ_REPEAT_S", 1.0)
    is_broken = False
    with FaultyStore(FILES, choose=lambda *_: fault if is_broken else None) as store:
        source = JsonlSource(f"{store.url}/a.jsonl")
        assert len(source) == COUNT
        is_broken = True
        with pytest.raises(OSError, match=rf"{store.url}/a\.jsonl: bytes 0 to 8,192 cannot be read: .*{reason}"):
            source[0]
        is_broken = False
        assert source[0]["id"] == 0  # a cut block is not kept


def test_permanent_failures_are_not_repeated():
    with FaultyStore(FILES) as store:
        source = JsonlSource(f"{store.url}/a.jsonl")
        assert len(source) == COUNT
        del store.files["/a.jsonl"]
        before = len(store.requests)
        with pytest.raises(OSError, match="FileNotFoundError"):
            source[0]
        assert len(store.requests) <= before + 2


def test_a_file_that_changed_is_named():
    with FaultyStore(FILES) as store:
        source = JsonlSource(f"{store.url}/a.jsonl")
        assert len(source) == COUNT
        store.files["/a.jsonl"] = make_lines(0, 10)
        with pytest.raises(ValueError, match="changed since its index was built"):
            source[COUNT - 1]


def test_a_server_without_ranges_is_read_and_warned_of(caplog: pytest.LogCaptureFixture):
    remote_requests._warn_of_whole_files.cache_clear()
    with FaultyStore(FILES, choose=lambda *_: "whole") as store:
        assert KINDS["a.jsonl"](f"{store.url}/a.jsonl") == list(range(COUNT))
    assert "sent the whole file instead of a range: each read fetches the file again" in caplog.text


@pytest.mark.parametrize("protocol", ["simplecache", "filecache"])
def test_a_local_copy_that_was_cut_is_made_again(tmp_path: Path, protocol: str):
    options = {protocol: {"cache_storage": str(tmp_path / "copies")}}

    def read(url: str) -> list[int]:
        fsspec.AbstractFileSystem.clear_instance_cache()
        return [row["id"] for row in JsonlSource(f"{protocol}::{url}/a.jsonl", storage_options=options)]

    with FaultyStore(FILES) as store:
        assert read(store.url) == list(range(COUNT))
        fetched = store.requests.count("/a.jsonl")
        assert read(store.url) == list(range(COUNT))
        assert store.requests.count("/a.jsonl") == fetched
        [copy] = [path for path in (tmp_path / "copies").iterdir() if path.stat().st_size == len(FILES["/a.jsonl"])]
        os.truncate(copy, 1000)
        assert read(store.url) == list(range(COUNT))
        assert store.requests.count("/a.jsonl") > fetched


def test_pauses_draw_nothing_from_the_generators_of_stages():
    random.seed(1)
    expected = random.getstate()
    with FaultyStore(FILES, choose=lambda number, _: "error" if number % 2 else None) as store:
        assert JsonlSource(f"{store.url}/a.jsonl")[0]["id"] == 0
    assert random.getstate() == expected


def test_a_passing_fault_is_repeated_and_a_wrong_argument_is_not():
    failing = itertools.chain([OSError("once")], itertools.repeat(None))

    def request() -> str:
        if error := next(failing):
            raise error
        return "answer"

    assert remote_requests.repeat_request(request, "it fails", 1.0) == "answer"
    with pytest.raises(ValueError, match=r"^as it is$"):
        remote_requests.repeat_request(lambda: (_ for _ in ()).throw(ValueError("as it is")), "it fails", 1.0)


def test_the_store_makes_the_faults_that_the_tests_name():
    with FaultyStore(FILES, choose=lambda number, _: FAULTS[number - 1] if number <= len(FAULTS) else None) as store:
        faulty_store.STALL_S, kept = 0.1, faulty_store.STALL_S
        file_system = fsspec.filesystem("http")
        results = []
        for _ in FAULTS:
            try:
                results.append(len(file_system.cat_file(f"{store.url}/a.jsonl", start=0, end=100)))
            except Exception as error:  # noqa: BLE001 - of aiohttp
                results.append(type(error).__name__)
        faulty_store.STALL_S = kept
    assert results[0] == results[1] == "ClientResponseError"
    assert results[2] == results[5] == "ClientPayloadError"
    assert results[3:5] == [50, len(FILES["/a.jsonl"])]
