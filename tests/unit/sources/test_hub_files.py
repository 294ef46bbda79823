"""`hf://` is read from a local server that answers as the Hugging Face Hub."""

import io
import itertools

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stagepipe.sources import FilesSource, JsonlSource, ParquetSource, remote_requests
from tests.support.local_hub import LocalHub

constants = pytest.importorskip("huggingface_hub.constants")


def make_parquet(first: int, last: int) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(first, last))}), target, row_group_size=10)
    return target.getvalue()


LINES = b"".join(b'{"id": %d}\n' % number for number in range(300_000))
FILES = {"/train/0.parquet": make_parquet(0, 50), "/train/1.parquet": make_parquet(50, 100), "/a.jsonl": LINES}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remote_requests, "LISTING_REPEAT_S", 0.3)
    monkeypatch.setattr(remote_requests, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # it is a local server
    fsspec.AbstractFileSystem.clear_instance_cache()


def read(hub: LocalHub, path: str) -> list[int]:
    source = ParquetSource(f"hf://datasets/user/{path}", storage_options={"endpoint": hub.url})
    return [row["id"] for row in source]


@pytest.mark.parametrize("path", ["digits/train/*.parquet", "digits/**/*.parquet", "digits@main/train/*.parquet"])
def test_parquet_files_of_a_repository_are_read(path: str):
    with LocalHub(FILES) as hub:
        assert read(hub, path) == list(range(100))


def test_each_byte_is_fetched_once_for_the_index_and_once_for_the_records():
    """The file objects of huggingface_hub read 5 MiB ahead of each range."""
    with LocalHub(FILES) as hub:
        source = JsonlSource("hf://datasets/user/digits/a.jsonl", storage_options={"endpoint": hub.url})
        assert [row["id"] for row in source] == list(range(300_000))
        assert hub.sent_bytes < 2.1 * len(LINES)


@pytest.mark.parametrize("fault", ["whole", "cut"])
def test_no_fault_changes_a_row(fault: str):
    """A whole file in place of a range would be cut at the wrong place by the cache of the client's file."""
    reads = itertools.count()
    with LocalHub(FILES, choose=lambda _, path: fault if "resolve" in path and next(reads) % 3 == 0 else None) as hub:
        assert read(hub, "digits/train/*.parquet") == list(range(100))
        assert hub.faults[fault]


def test_a_wrong_repository_folder_or_address_is_named(monkeypatch: pytest.MonkeyPatch):
    with LocalHub(FILES) as hub:
        with pytest.raises(
            OSError, match=r"hf://datasets/user/dgits/\*: cannot be listed: RepositoryNotFoundError: 404"
        ):
            read(hub, "dgits/*")
        with pytest.raises(ValueError, match=r"no file matches 'hf://datasets/user/digits/tain/\*.parquet'; check"):
            read(hub, "digits/tain/*.parquet")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(OSError, match=r"OfflineModeIsEnabled: .*unset the `HF_HUB_OFFLINE` environment variable"):
            FilesSource("hf://datasets/user/other/*", storage_options={"endpoint": hub.url})
