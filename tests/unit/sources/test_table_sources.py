"""Parquet and Arrow: the values of a row, which groups are read, and what is wrong with a bad file."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stagepipe import UsageError
from stagepipe.sources import ArrowSource, ParquetSource, table_sources
from tests.support.rights import drops_rights, run_without_rights
from tests.support.source_cases import make_table


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that are read, in order."""
    groups: list[int] = []
    read_group = ParquetSource.read_group

    def read(self, content, group, columns):
        groups.append(group)
        return read_group(self, content, group, columns)

    monkeypatch.setattr(ParquetSource, "read_group", read)
    return groups


def test_values_are_pythons_and_lists_of_numbers_are_arrays():
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.uint8(), (2, 3)), pa.array([list(range(6))] * 2, pa.list_(pa.uint8(), 6))
    )
    columns = {
        "id": pa.array([7, None]),
        "vector": pa.array([[1.5, 2], []], pa.list_(pa.float16())),
        "ids": pa.array([[1, 2], [3]], pa.large_list(pa.int64())),
        "gaps": pa.array([[1, None], None], pa.list_(pa.int32())),
        "words": pa.array([["a"], ["b", "c"]]),
        "nested": pa.array([{"x": 1}, {"x": 2}]),
        "image": pa.array([b"\x00", b""]),
        "tensor": tensor,
    }
    pq.write_table(pa.table(columns), "a.parquet")
    with pa.ipc.new_file("a.arrow", pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    for source in (ParquetSource("a.parquet"), ArrowSource("a.arrow")):
        first, second = source
        assert (first["id"], second["id"], first["image"], first["nested"]) == (7, None, b"\x00", {"x": 1})
        assert (first["gaps"], second["gaps"], second["words"]) == ([1, None], None, ["b", "c"])
        assert (first["vector"].dtype, first["vector"].tolist(), second["vector"].shape) == (np.float16, [1.5, 2], (0,))
        assert (second["ids"].dtype, second["ids"].tolist()) == (np.int64, [3])
        assert (second["tensor"].dtype, second["tensor"].tolist()) == (np.uint8, [[0, 1, 2], [3, 4, 5]])


def test_reading_needs_no_pandas():
    pq.write_table(make_table(range(5)), "a.parquet")
    script = (
        "import sys; from stagepipe.sources import ParquetSource as P; print(*P('a.parquet'), 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path.cwd(),
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.endswith("False\n")


def test_a_row_group_is_read_once_in_order_and_in_a_block_shuffle(reads, monkeypatch):
    monkeypatch.setattr(table_sources, "MAX_KEPT_BYTES", 0)
    pq.write_table(make_table(range(100)), "a.parquet", row_group_size=10)
    assert [row["id"] for row in ParquetSource("a.parquet")] == list(range(100))
    assert reads == list(range(10))
    reads.clear()
    source = ParquetSource("a.parquet", shuffle="blocks")
    order = source.make_order("blocks")
    order.begin(0, 17)
    numbers = [order[index] for index in range(100)]
    assert [row["id"] for row in source.__getitems__(numbers)] == numbers
    assert sorted(reads) == list(range(10))
    assert len({number // 10 for number in numbers[:20]}) > 2, "rows of several groups are mixed"


def test_only_the_columns_asked_for_are_read():
    pq.write_table(make_table(range(3)), "a.parquet")
    assert ParquetSource("a.parquet", columns=["text"])[2] == {"text": "2"}
    with pytest.raises(
        ValueError, match=r"parquet: a\.parquet has no column `txt`; did you mean `text`\? It has id, vector, text"
    ):
        ParquetSource("a.parquet", columns=["txt"])


def test_each_file_must_have_the_columns_under_names_of_their_own():
    pq.write_table(make_table(range(1)), "a.parquet")
    pq.write_table(pa.table({"id": [1]}), "b.parquet")
    pq.write_table(pa.table([[1], [2], [3]], names=["text", "id", "id"]), "c.parquet")
    source = ParquetSource(["a.parquet", "b.parquet", "c.parquet"], columns=["text"])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"parquet: b\.parquet has no column `text`"):
            source[1]
    assert source[2] == {"text": 1}
    with pytest.raises(ValueError, match=r"parquet: c\.parquet: two columns have the name `id`; rename one"):
        ParquetSource("c.parquet")[0]


def test_files_without_rows_or_of_another_format():
    pq.write_table(make_table(()), "a.parquet")
    pq.write_table(make_table(range(2)), "b.parquet")
    assert [row["id"] for row in ParquetSource("*.parquet")] == [0, 1]
    assert len(ParquetSource("a.parquet", shuffle="blocks").make_order("blocks")) == 0
    Path("a.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"parquet: a\.parquet: not a whole parquet file"):
        len(ParquetSource("a.parquet"))
    with pytest.raises(ValueError, match=r"arrow: a\.parquet: not a whole arrow file"):
        len(ArrowSource("a.parquet"))


def test_a_full_shuffle_of_much_is_warned_of(caplog, monkeypatch):
    monkeypatch.setattr(table_sources, "MAX_KEPT_BYTES", 100)
    pq.write_table(make_table(range(2)), "a.parquet")
    ParquetSource("a.parquet").make_order(shuffle=True)
    assert "`shuffle: blocks` shuffles the groups" in caplog.text
    caplog.clear()
    ParquetSource("a.parquet").make_order("blocks")
    assert not caplog.text


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"stagepipe\.sources\.parquet needs pyarrow: pip install 'pyarrow>=[\d.]+'"):
        ParquetSource("a.parquet")


def test_a_damaged_row_group_is_named_with_its_file():
    pq.write_table(make_table(range(4000)), "a.parquet", row_group_size=1000, use_dictionary=False)
    position = pq.ParquetFile("a.parquet").metadata.row_group(2).column(0).data_page_offset
    with Path("a.parquet").open("r+b") as file:
        file.seek(position + 40)
        file.write(b"\xff" * 200)
    source = ParquetSource("a.parquet")
    assert source[0]["id"] == 0
    with pytest.raises(OSError, match=r"^parquet: a\.parquet: row group 2 cannot be read: "):
        source[2000]


def test_a_file_that_pyarrow_cannot_open_is_named(folder: Path):
    if os.getuid() == 0 and not drops_rights():
        pytest.skip("root reads every file")
    pq.write_table(make_table(range(4)), "a.parquet")
    Path("a.parquet").chmod(0)
    script = "from stagepipe.sources import ParquetSource; len(ParquetSource('a.parquet'))"
    done = run_without_rights([sys.executable, "-c", script], folder)
    assert "OSError: parquet: a.parquet: cannot be opened: [Errno 13] " in done.stderr


def test_tensors_have_their_logical_shape_wherever_they_are():
    def make(value_type, rows, **options):
        storage = pa.array(rows, pa.list_(value_type, 6))
        return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(value_type, (2, 3), **options), storage)

    row, bits = [0, 1, 2, 3, 4, 5], [True, False] * 3
    permuted = make(pa.int32(), [row], permutation=[1, 0])
    table = pa.table(
        {
            "identity": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6).reshape(1, 2, 3)),
            "permuted": permuted,
            "bits": make(pa.bool_(), [bits], permutation=[1, 0]),
            "gaps": make(pa.int32(), [[0, None, *row[2:]]]),
            "struct": pa.StructArray.from_arrays([permuted], ["t"]),
        }
    )
    pq.write_table(table, "a.parquet")
    found = ParquetSource("a.parquet")[0]
    assert found["identity"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["permuted"].tolist() == found["struct"]["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (found["bits"].dtype, found["bits"].shape) == (np.bool_, (3, 2))
    assert found["bits"].T.ravel().tolist() == bits
    assert found["gaps"] == [[0, None, 2], [3, 4, 5]]
