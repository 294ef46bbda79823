"""Arrow types in Parquet, Arrow and Lance files beside pyarrow, pandas and DuckDB."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stagepipe.sources import ArrowSource, HuggingFaceSource, LanceSource, ParquetSource
from tests.differential.cell import Cell

PLAIN: dict[str, pa.Array] = {
    "bool": pa.array([True, False]),
    "int8": pa.array([-128, 127], pa.int8()),
    "int16": pa.array([-(2**15), 2**15 - 1], pa.int16()),
    "int32": pa.array([-(2**31), 2**31 - 1], pa.int32()),
    "uint8": pa.array([0, 255], pa.uint8()),
    "uint16": pa.array([0, 2**16 - 1], pa.uint16()),
    "uint32": pa.array([0, 2**32 - 1], pa.uint32()),
    "int64": pa.array([-(2**63), 2**53 + 1]),
    "uint64": pa.array([2**64 - 1, 0], pa.uint64()),
    "float16": pa.array([1.5, -2.0], pa.float16()),
    "float32": pa.array([0.5, float("inf")], pa.float32()),
    "float64": pa.array([0.1, -0.0]),
    "string": pa.array(["a", "\u00e4\0"]),
    "large_string": pa.array(["a", ""], pa.large_string()),
    "binary": pa.array([b"a\0", b""]),
    "fixed-size binary": pa.array([b"ab", b"c\0"], pa.binary(2)),
    "decimal128": pa.array([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(9, 2)),
    "date32": pa.array([dt.date(1, 1, 1), dt.date(2020, 2, 29)]),
    "time64[us]": pa.array([dt.time(1, 2, 3, 4), dt.time(0)]),
    "timestamp[us]": pa.array([dt.datetime(2020, 1, 1, 0, 0, 0, 1), dt.datetime(1969, 1, 1)]),  # noqa: DTZ001
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
}
"""Types of which all libraries have the same Python values."""

NESTED: dict[str, tuple[pa.Array, list[Any]]] = {
    "nulls": (pa.array([1, None]), [1, None]),
    "null": (pa.nulls(2), [None, None]),
    "timestamp[ns]": (pa.array([1, None], pa.timestamp("ns")), [pd.Timestamp(1), None]),
    "timestamp with a zone": (
        pa.array([dt.datetime(2020, 7, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "Europe/Berlin")),
        [dt.datetime(2020, 7, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")), None],
    ),
    "duration[us]": (pa.array([dt.timedelta(microseconds=1), None]), [dt.timedelta(microseconds=1), None]),
    "list of bool": (pa.array([[True], []]), [[True], []]),
    "list of string": (pa.array([["a", None], None]), [["a", None], None]),
    "list of list": (pa.array([[[1], []], [[2, 3]]]), [[[1], []], [[2, 3]]]),
    "list with a null": (pa.array([[1, None], None], pa.list_(pa.int32())), [[1, None], None]),
    "struct": (pa.array([{"a": 1, "b": {"c": [1.5]}}, None]), [{"a": 1, "b": {"c": [1.5]}}, None]),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), [[("a", 1)], []]),
    "uuid": (pa.array([b"a" * 16, None], pa.uuid()), [uuid.UUID(bytes=b"a" * 16), None]),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())), [True, None]),
}
"""With what rows hold: the values that the array was made of."""

LISTS: dict[str, pa.Array] = {
    "list of int32": pa.array([[1, 2], []], pa.list_(pa.int32())),
    "large_list of float16": pa.array([[1.5], [2]], pa.large_list(pa.float16())),
    "fixed-size list of float32": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
    "sliced list of uint8": pa.array([[0], [1, 2], [3]], pa.list_(pa.uint8()))[1:],
    "list of int8": pa.array([[-128, 127], [-1]], pa.list_(pa.int8())),
    "list of int16": pa.array([[-(2**15)], [1, -1]], pa.list_(pa.int16())),
    "list of uint16": pa.array([[2**16 - 1], [0, 1]], pa.list_(pa.uint16())),
    "list of uint32": pa.array([[2**32 - 1], [0, 1]], pa.list_(pa.uint32())),
    "list of uint64": pa.array([[2**64 - 1], [0, 1]], pa.list_(pa.uint64())),
    "list of float64": pa.array([[0.1, -0.5], [1e300]], pa.list_(pa.float64())),
    "list_view of int64": pa.array([[1], [2, 3]], pa.list_view(pa.int64())),
}
"""A list of numbers is an array."""


def _tensor(value_type: pa.DataType, rows: list[Any], shape: tuple[int, ...], **options: Any) -> pa.Array:
    storage = pa.array(rows, pa.list_(value_type, int(np.prod(shape))))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(value_type, shape, **options), storage)


_ROWS = [list(range(6)), list(range(6, 12))]
_BITS = [[True, False, True, False, True, True], [False] * 6]
_PLAIN_TENSOR = _tensor(pa.int32(), _ROWS, (2, 3))
TENSORS: dict[str, tuple[pa.Array, list[Any]]] = {
    "made by from_numpy_ndarray": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3)),
        list(np.arange(12.0).reshape(2, 2, 3)),
    ),
    "uint8": (_tensor(pa.uint8(), _ROWS, (2, 3)), list(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))),
    "float16": (_tensor(pa.float16(), _ROWS, (2, 3)), list(np.arange(12, dtype=np.float16).reshape(2, 2, 3))),
    "one axis": (_tensor(pa.int32(), _ROWS, (6,)), list(np.arange(12, dtype=np.int32).reshape(2, 6))),
    "named axes": (
        _tensor(pa.int32(), _ROWS, (2, 3), dim_names=["H", "W"]),
        list(np.arange(12, dtype=np.int32).reshape(2, 2, 3)),
    ),
    "identity permutation": (
        _tensor(pa.int32(), _ROWS, (2, 3), permutation=[0, 1]),
        list(np.arange(12, dtype=np.int32).reshape(2, 2, 3)),
    ),
    "permuted": (
        _tensor(pa.int32(), _ROWS, (2, 3), permutation=[1, 0]),
        list(np.arange(12, dtype=np.int32).reshape(2, 2, 3).transpose(0, 2, 1)),
    ),
    "three axes, permuted": (
        _tensor(pa.int32(), _ROWS, (1, 2, 3), permutation=[2, 0, 1]),
        list(np.arange(12, dtype=np.int32).reshape(2, 1, 2, 3).transpose(0, 3, 1, 2)),
    ),
    "bool": (_tensor(pa.bool_(), _BITS, (2, 3)), list(np.array(_BITS).reshape(2, 2, 3))),
    "bool, permuted": (
        _tensor(pa.bool_(), _BITS, (2, 3), permutation=[1, 0]),
        list(np.array(_BITS).reshape(2, 2, 3).transpose(0, 2, 1)),
    ),
    "sliced": (_PLAIN_TENSOR[1:], list(np.arange(6, 12, dtype=np.int32).reshape(1, 2, 3))),
    "row that is null": (
        _tensor(pa.int32(), [None, _ROWS[0]], (2, 3)),
        [None, np.arange(6, dtype=np.int32).reshape(2, 3)],
    ),
    "null inside": (
        _tensor(pa.int32(), [[0, None, 2, 3, 4, 5], _ROWS[1]], (2, 3)),
        [[[0, None, 2], [3, 4, 5]], np.arange(6, 12, dtype=np.int32).reshape(2, 3)],
    ),
    "dates": (_tensor(pa.date32(), [[0, 1]], (2, 1)), [[[dt.date(1970, 1, 1)], [dt.date(1970, 1, 2)]]]),
    "in a struct": (
        pa.StructArray.from_arrays([_PLAIN_TENSOR], ["t"]),
        [{"t": row} for row in np.arange(12, dtype=np.int32).reshape(2, 2, 3)],
    ),
    "in a list": (
        pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), _PLAIN_TENSOR),
        [list(np.arange(12, dtype=np.int32).reshape(2, 2, 3))],
    ),
}
"""With the logical values, made by NumPy."""


def _write_parquet(array: pa.Array, folder: Path) -> str:
    pq.write_table(pa.table({"x": array}), folder / "x.parquet")
    return str(folder / "x.parquet")


def _write_arrow(array: pa.Array, folder: Path) -> str:
    table = pa.table({"x": array})
    with pa.ipc.new_file(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    return str(folder / "x.arrow")


def _write_stream(array: pa.Array, folder: Path) -> str:
    table = pa.table({"x": array})
    with pa.ipc.new_stream(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    return str(folder / "x.arrow")


def _write_lance(array: pa.Array, folder: Path) -> str:
    import lance

    lance.write_dataset(pa.table({"x": array}), folder / "x.lance")
    return str(folder / "x.lance")


WRITERS: dict[str, tuple[Callable[[pa.Array, Path], str], Any]] = {
    "source parquet": (_write_parquet, ParquetSource),
    "source arrow": (_write_arrow, ArrowSource),
    "source lance": (_write_lance, LanceSource),
    "source huggingface": (_write_stream, HuggingFaceSource),
}


def _read_rows(group: str, array: pa.Array, folder: Path) -> list[Any]:
    write, source = WRITERS[group]
    rows = source(write(array, folder))
    return [row["x"] for row in rows.__getitems__(range(len(rows)))]


def _read(group: str, array: pa.Array) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        if group != "source lance":
            return _read_rows(group, array, folder)
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process with Lance warns of each fork
            return pool.apply(_read_rows, (group, array, folder))

    return ours


def _to_list(group: str, array: pa.Array) -> Callable[[Path], Any]:
    return lambda folder: [np.asarray(value).tolist() for value in _read(group, array)(folder)]


def _read_by_pyarrow(group: str, array: pa.Array) -> Callable[[Path], Any]:
    def theirs(folder: Path) -> Any:
        path = WRITERS[group][0](array, folder)
        if group == "source parquet":
            return pq.read_table(path)["x"].to_pylist()
        return pa.ipc.open_file(path).read_all()["x"].to_pylist()

    return theirs


def _read_by_pandas(array: pa.Array) -> Callable[[Path], Any]:
    return lambda folder: pd.read_parquet(_write_parquet(array, folder))["x"].tolist()


def _read_by_duckdb(array: pa.Array) -> Callable[[Path], Any]:
    return lambda folder: [row[0] for row in duckdb.read_parquet(_write_parquet(array, folder)).fetchall()]


def _give(value: Any, _: Path) -> Any:
    return value


def _make_arrays(lists: pa.Array, _: Path) -> list[np.ndarray]:
    return [row.values.to_numpy(zero_copy_only=False) for row in lists]  # noqa: PD011 - of pyarrow


def _make_plain_cells() -> list[Cell]:
    cells = []
    for case, (array, expected) in NESTED.items():
        for group in ("source parquet", "source arrow"):
            theirs = partial(_give, expected)
            cells.append(Cell(group=group, case=case, library="Python", ours=_read(group, array), theirs=theirs))
    for case, array in PLAIN.items():
        for group in ("source parquet", "source arrow"):
            ours, theirs = _read(group, array), _read_by_pyarrow(group, array)
            cells.append(Cell(group=group, case=case, library="pyarrow", ours=ours, theirs=theirs))
            cells.append(Cell(group=group, case=case, library="DuckDB", ours=ours, theirs=_read_by_duckdb(array)))
        ours = _read("source parquet", array)
        if not case.startswith("timestamp"):  # pandas has a class of its own
            cells.append(
                Cell(group="source parquet", case=case, library="pandas", ours=ours, theirs=_read_by_pandas(array))
            )
    nanosecond = pa.array([1], pa.time64("ns"))
    cells.append(
        Cell(
            group="source parquet",
            case="time64[ns]",
            library="pyarrow",
            ours=_read("source parquet", nanosecond),
            theirs=lambda _: nanosecond.cast(pa.int64()).to_pylist(),
            expected=lambda _: [dt.time(0)],
            outcome="different",
            note="`datetime.time`, as of pyarrow, which has microseconds",
        )
    )
    return cells


def _make_list_cells() -> list[Cell]:
    cells = []
    for case, array in LISTS.items():
        for group in ("source parquet", "source arrow"):
            theirs = partial(_make_arrays, array)
            cells.append(Cell(group=group, case=case, library="pyarrow", ours=_read(group, array), theirs=theirs))
        cells.append(
            Cell(
                group="source parquet",
                case=case,
                library="DuckDB",
                ours=_to_list("source parquet", array),
                theirs=_read_by_duckdb(array),
            )
        )
    return cells


def _make_tensor_cells() -> list[Cell]:
    cells = [
        Cell(
            group=group,
            case=f"tensor, {case}",
            library="NumPy",
            ours=_read(group, array),
            theirs=lambda _, expected=expected: expected,
        )
        for case, (array, expected) in TENSORS.items()
        for group in ("source parquet", "source arrow", "source lance")
    ]
    cells += [
        Cell(
            group="source huggingface",
            case=f"tensor, {case}",
            library="datasets",
            ours=_read("source huggingface", TENSORS[case][0]),
            outcome="error",
            note="does not have a datasets dtype equivalent",
        )
        for case in ("uint8", "permuted", "bool", "in a struct")
    ]
    return cells


COUNT = 10
_NUMBERS = pa.array(range(0, -COUNT, -1), pa.int32())
_ORDER = (9, 0, 4, 3, 5, 8)


def _read_groups(group: str, folder: Path) -> list[Any]:
    """Read rows of a table that is stored in groups of 3, in another order."""
    table = pa.table({"x": _NUMBERS, "y": pa.array([str(number) for number in range(COUNT)])})
    if group == "source parquet":
        pq.write_table(table, folder / "x.parquet", row_group_size=3)
        rows: Any = ParquetSource(str(folder / "x.parquet"), columns=["y", "x"])
    else:
        with pa.ipc.new_file(folder / "x.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        rows = ArrowSource(str(folder / "x.arrow"), columns=["y", "x"])
    return [len(rows), *rows.__getitems__(_ORDER), rows[-1]]


def _read_all_types(group: str, folder: Path) -> list[Any]:
    table = pa.table(ALL_TYPES)
    if group == "source lance":
        import lance

        lance.write_dataset(table, folder / "x.lance")
        rows: Any = LanceSource(str(folder / "x.lance"))
    else:
        with pa.ipc.new_stream(folder / "x.arrow", table.schema) as writer:
            writer.write_table(table)
        rows = HuggingFaceSource(str(folder / "x.arrow"))
    return rows.__getitems__([1, 0])


ALL_TYPES = {case: array for case, array in PLAIN.items() if case != "dictionary"} | {"nulls": NESTED["nulls"][0]}


def _read_all_types_by_duckdb(folder: Path) -> list[Any]:
    pq.write_table(pa.table(ALL_TYPES), folder / "x.parquet")
    rows = duckdb.read_parquet(str(folder / "x.parquet")).fetchall()
    return [dict(zip(ALL_TYPES, rows[row], strict=True)) for row in (1, 0)]


def _in_another_process(read: Callable[[str, Path], Any], group: str, folder: Path) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process with Lance warns of each fork
        return pool.apply(read, (group, folder))


def _make_table_cells() -> list[Cell]:
    cells = [
        Cell(
            group=group,
            case="rows of four groups, in another order",
            library="Python",
            ours=partial(_read_groups, group),
            theirs=lambda _: [COUNT, *({"y": str(row), "x": -row} for row in (*_ORDER, COUNT - 1))],
        )
        for group in ("source parquet", "source arrow")
    ]
    reads = {
        "source lance": partial(_in_another_process, _read_all_types, "source lance"),
        "source huggingface": partial(_read_all_types, "source huggingface"),
    }
    cells += [
        Cell(group=group, case="all plain types", library="DuckDB", ours=read, theirs=_read_all_types_by_duckdb)
        for group, read in reads.items()
    ]
    return cells


CELLS: tuple[Cell, ...] = tuple(
    sorted(
        (*_make_plain_cells(), *_make_table_cells(), *_make_list_cells(), *_make_tensor_cells()),
        key=lambda cell: cell.group,
    )
)
