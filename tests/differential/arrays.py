"""Kinds of arrays and scalars in each sink and source of arrays, in Batch and as tensors, beside another library."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import h5py
import numpy as np
import pandas as pd
import torch
import webdataset as wds
import zarr
from webdataset.autodecode import Decoder
from webdataset.tariterators import group_by_keys, tar_file_expander

from stagepipe import from_source
from stagepipe.sinks import (
    FileTreeSink,
    HuggingFaceSink,
    JsonlSink,
    NpySink,
    NpzShardSink,
    NpzSink,
    ParquetSink,
    PartPlace,
    PartSink,
    WebDatasetSink,
    ZarrSink,
)
from stagepipe.sources import Hdf5Source, NpySource, ZarrSource
from stagepipe.torch.transfer import to_tensors
from tests.differential.cell import Cell

_RECORD = np.dtype([("a", "i4"), ("b", "f4")])
_MASKED = np.ma.masked_array([0, 1, 2, 3], [False, True, False, True])

NUMBERS: dict[str, Any] = {
    "bool": np.array([True, False]),
    "int8": np.array([-128, 127], np.int8),
    "uint16": np.array([0, 65535], np.uint16),
    "int64": np.array([-(2**63), 2**53 + 1]),
    "uint64": np.array([2**64 - 1], np.uint64),
    "float16": np.array([1.5, np.nan], np.float16),
    "float32": np.array([0.1, -np.inf], np.float32),
    "float64": np.array([0.1, np.nan, np.inf]),
    "big-endian int32": np.array([1, 2], ">i4"),
    "two axes": np.arange(6.0).reshape(2, 3),
    "Fortran order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "reversed": np.arange(4)[::-1],
    "no elements": np.zeros((0,), np.float32),
}
"""What every format holds."""

OTHERS: dict[str, Any] = {
    "complex64": np.array([1 + 2j], np.complex64),
    "longdouble": np.array([np.longdouble(1) / 3]),
    "structured": np.array([(1, 2.5)], _RECORD),
    "raw bytes V2": np.array([b"ab", b"c"], "V2"),
    "datetime64[ns] with NaT": np.array(["2020-01-01T00:00:00.000000001", "NaT"], "M8[ns]"),
    "timedelta64[s]": np.array([1, -1], "m8[s]"),
    "text": np.array(["a", "bcd"]),
    "bytes S3": np.array([b"a", b"b\0c"]),
    "array without axes": np.array(3, np.int16),
    "NumPy scalar": np.float32(0.1),
    "masked array with nothing masked": np.ma.masked_array([1, 2], [False, False]),
}
"""What NumPy's format holds too."""

REFUSED: dict[str, tuple[Any, str]] = {
    "masked": (_MASKED, "has masked values"),
    "masked scalar": (np.ma.masked, "has masked values"),
    "masked in a list": ([_MASKED], "has masked values"),
    "masked records": (np.ma.masked_array(np.zeros(1, _RECORD), [(True, False)]), "has masked values"),
    "objects": (np.array([1, "a"], object), "is of type ndarray of object"),
    "bfloat16 tensor": (torch.ones(2, dtype=torch.bfloat16), "is of type Tensor of torch.bfloat16"),
    "sparse tensor": (torch.ones(2).to_sparse(), "is of type Tensor"),
    "text with a NUL at its end": ("a\0", "an array of it would change a value"),
}
"""What NumPy's format cannot hold."""


def write(sink: PartSink, items: Sequence[Any], folder: Path, part_items: int | None = None) -> Path:
    """Write one shard as a run does, of one part or of parts of `part_items`, and return its path."""
    kept: dict[str, Any] = {}
    size = part_items or len(items)
    parts = [(folder / f"part{start}", items[start : start + size]) for start in range(0, len(items), size)]
    if isinstance(sink, FileTreeSink):
        for number, (part, rows) in enumerate(parts):
            sink.write_part(rows, part)
            for name, final_name in sink.place_files(part, number * size, len(rows), kept).items():
                (sink.path / final_name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).rename(sink.path / final_name)
        path = sink.path
    else:
        for part, rows in parts:
            sink.write_part(rows, part)
            sink.prepare_part(part, kept)
        sink.path.mkdir(exist_ok=True)
        path = sink.path / sink.name_shard(0, 1)
        with path.open("w+b") as file:
            sink.begin_shard(file, kept)
            places = []
            for part, rows in parts:
                places.append(PartPlace(file.tell(), part.stat().st_size, len(rows)))
                file.write(part.read_bytes())
            sink.finish_shard(file, places, kept)
    for name, data in sink.describe(1, len(items), kept).items():
        (sink.path / name).write_bytes(data)
    return path


def _write_column(make_sink: Callable[..., PartSink], value: Any, folder: Path, **arguments: Any) -> Path:
    return write(make_sink(folder / "out", **arguments), [{"x": value}], folder)


def _is_stored_as_text(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "U"


# ---------------------------------------------------------------------- NumPy's format


def _npz(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        NpzSink(folder / "out")({"x": value})
        return np.load(folder / "out/000000.npz")["x"]

    return ours


def _npz_by_numpy(value: Any) -> Callable[[Path], Any]:
    def theirs(folder: Path) -> Any:
        np.savez(folder / "x.npz", x=value)
        return np.load(folder / "x.npz")["x"]

    return theirs


def _npz_shards(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        return np.load(write(NpzShardSink(folder / "out"), [{"x": value}] * 2, folder))["x"]

    return ours


def _npy(value: Any) -> Callable[[Path], Any]:
    return lambda folder: np.load(write(NpySink(folder / "out"), [value] * 2, folder))


def _stack_by_numpy(value: Any) -> Callable[[Path], Any]:
    def theirs(folder: Path) -> Any:
        np.save(folder / "x.npy", np.stack([value] * 2))
        return np.load(folder / "x.npy")

    return theirs


def _make_numpy_cells() -> list[Cell]:
    cells = []
    for case, value in (NUMBERS | OTHERS).items():
        cells.append(
            Cell(group="npz", case=case, library="NumPy", ours=_npz(value), theirs=_npz_by_numpy(np.asarray(value)))
        )
        for group, ours in (("npz_shards", _npz_shards), ("npy", _npy)):
            theirs = _stack_by_numpy(np.asarray(value))
            cells.append(Cell(group=group, case=case, library="NumPy", ours=ours(value), theirs=theirs))
    for case, (value, note) in REFUSED.items():
        for group, ours in (("npz", _npz), ("npz_shards", _npz_shards), ("npy", _npy)):
            cells.append(Cell(group=group, case=case, library="NumPy", ours=ours(value), outcome="error", note=note))
    mixed = [{"x": 1}, {"x": 1.5}]
    cells += [
        Cell(
            group="npz_shards",
            case="a whole number, then a float",
            library="NumPy",
            ours=lambda folder: write(NpzShardSink(folder / "out"), mixed, folder),
            outcome="error",
            note="field `x`, row 1 of the part: shape () and dtype float64",
        ),
        Cell(
            group="npy",
            case="list of a number and a text",
            library="NumPy",
            ours=_npy([1, "a"]),
            outcome="error",
            note="an array of it would change a value",
        ),
        Cell(
            group="npy",
            case="bytes with a NUL at their end",
            library="NumPy",
            ours=_npy(b"a\0"),
            theirs=_stack_by_numpy(np.frombuffer(b"a\0", np.uint8)),
        ),
    ]
    return sorted(cells, key=lambda cell: cell.group)


# ---------------------------------------------------------------------- JSON


def _jsonl_by_json(value: Any) -> Callable[[Path], Any]:
    return lambda folder: json.loads(_write_column(JsonlSink, value, folder).read_text())["x"]


def _jsonl_by_duckdb(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        path = _write_column(JsonlSink, value, folder)
        return duckdb.sql(f"select x from read_json('{path}', format='newline_delimited')").fetchall()

    return ours


def _make_json_cells() -> list[Cell]:
    cells = []
    for case, value in (NUMBERS | {"text": np.array(["a", "bcd"]), "array without axes": np.array(3)}).items():
        cells.append(
            Cell(
                group="jsonl",
                case=case,
                library="NumPy",
                ours=_jsonl_by_json(value),
                theirs=lambda _, value=value: value.tolist(),
            )
        )
    plain: dict[str, tuple[Any, Any]] = {
        "masked": (_MASKED, [0, None, 2, None]),
        "masked in a dict": ({"y": _MASKED}, {"y": [0, None, 2, None]}),
        "masked scalar": (np.ma.masked, None),
        "records": (np.array([(1, 2.5)], _RECORD), [{"a": 1, "b": 2.5}]),
        "bfloat16 tensor": (torch.ones(2, dtype=torch.bfloat16), [1.0, 1.0]),
    }
    for case, (value, expected) in plain.items():
        cells.append(
            Cell(
                group="jsonl",
                case=case,
                library="DuckDB",
                ours=_jsonl_by_duckdb(value),
                theirs=lambda _, expected=expected: [(expected,)],
            )
        )
    dates = pd.Series(pd.to_datetime(["2020-01-01T00:00:00.000000001"]).as_unit("ns"))
    cells += [
        Cell(
            group="jsonl",
            case="datetime64[ns]",
            library="pandas",
            ours=lambda folder: pd.to_datetime(pd.Series(_jsonl_by_json(dates.to_numpy())(folder))).to_numpy(),
            theirs=lambda _: dates.to_numpy(),
        ),
        Cell(
            group="jsonl",
            case="year 12020",
            library="NumPy",
            ours=lambda folder: np.array(_jsonl_by_json(np.array(["12020-01-01"], "M8[D]"))(folder), "M8[D]"),
            theirs=lambda _: np.array(["12020-01-01"], "M8[D]"),
        ),
        Cell(
            group="jsonl",
            case="bytes",
            library="NumPy",
            ours=_jsonl_by_json(b"ab"),
            theirs=lambda _: b"ab",
            expected=lambda _: "YWI=",
            outcome="different",
            note="bytes are base64 text, because JSON has none",
        ),
    ]
    refused: dict[str, tuple[Any, str]] = {
        "longdouble": (np.ones(1, np.longdouble), "row 0 of the part, field `x`: JSON cannot hold float128"),
        "longdouble scalar": (np.longdouble(1), "row 0 of the part, field `x`: JSON cannot hold float128"),
        "complex": (np.array([1j]), "JSON cannot hold complex"),
        "timedelta64[ns]": (np.array([1], "m8[ns]"), "JSON has no text for timedelta64[ns]"),
        "sparse tensor": (torch.ones(2).to_sparse(), "field `x`: JSON cannot hold Tensor"),
        "two keys of one text": ({1: "a", "1": "b"}, "two keys of a dict become the same string"),
    }
    for case, (value, note) in refused.items():
        cells.append(
            Cell(group="jsonl", case=case, library="json", ours=_jsonl_by_json(value), outcome="error", note=note)
        )
    return cells


# ---------------------------------------------------------------------- tables


def _parquet_by_pandas(value: Any) -> Callable[[Path], Any]:
    return lambda folder: pd.read_parquet(_write_column(ParquetSink, value, folder))["x"][0]


def _pandas_round_trip(value: Any) -> Callable[[Path], Any]:
    def theirs(folder: Path) -> Any:
        pd.DataFrame({"x": [value]}).to_parquet(folder / "x.parquet")
        return pd.read_parquet(folder / "x.parquet")["x"][0]

    return theirs


def _parquet_by_duckdb(value: Any) -> Callable[[Path], Any]:
    return lambda folder: duckdb.read_parquet(str(_write_column(ParquetSink, value, folder))).fetchall()[0][0]


def _hugging_face(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        import datasets

        _write_column(HuggingFaceSink, value, folder)
        return datasets.load_from_disk(str(folder / "out"))[0]["x"]

    return ours


def _make_table_cells() -> list[Cell]:
    cells = []
    flat = {case: value for case, value in NUMBERS.items() if value.ndim == 1}
    for case, value in flat.items():
        native = value.astype(value.dtype.newbyteorder("="))
        cells.append(
            Cell(
                group="parquet",
                case=case,
                library="pandas",
                ours=_parquet_by_pandas(value),
                theirs=_pandas_round_trip(native),
            )
        )
    nested: dict[str, tuple[Any, Any]] = {
        "two axes": (NUMBERS["two axes"], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        "Fortran order": (NUMBERS["Fortran order"], [[0, 1, 2], [3, 4, 5]]),
        "masked": (_MASKED, [0, None, 2, None]),
        "masked, two axes": (_MASKED.reshape(2, 2), [[0, None], [2, None]]),
        "masked text": (np.ma.masked_array(["a", "b"], [True, False]), [None, "b"]),
        "masked in a dict": ({"y": _MASKED}, {"y": [0, None, 2, None]}),
        "masked in a list": ([_MASKED], [[0, None, 2, None]]),
        "masked scalar": (np.ma.masked_array(5, True), None),
        "big-endian in a dict": ({"y": np.array([1, 2], ">i4")}, {"y": [1, 2]}),
        "tensor in a dict": ({"y": torch.tensor([1.5, 2])}, {"y": [1.5, 2.0]}),
        "array without axes": (np.array(3, np.int16), 3),
        "text": (np.array(["a", "bcd"]), ["a", "bcd"]),
        "bytes S3": (np.array([b"a", b"b\0c"]), [b"a", b"b\0c"]),
        "conjugate tensor": (torch.tensor([1j]).conj().imag, [-1.0]),
    }
    for case, (value, expected) in nested.items():
        for group, library, ours in (
            ("parquet", "DuckDB", _parquet_by_duckdb),
            ("huggingface", "datasets", _hugging_face),
        ):
            cells.append(
                Cell(
                    group=group,
                    case=case,
                    library=library,
                    ours=ours(value),
                    theirs=lambda _, expected=expected: expected,
                )
            )
    refused: dict[str, tuple[Any, str]] = {
        "longdouble": (np.ones(1, np.longdouble), "field `x`, row 0 of the part: an array of float128"),
        "complex": (np.array([1j]), "field `x`, row 0 of the part: an array of complex128"),
        "structured": (np.zeros(1, _RECORD), "field `x`, row 0 of the part: an array of [('a', '<i4'), ('b', '<f4')]"),
        "datetime64[h]": (np.array(["2020"], "M8[h]"), "field `x`, row 0 of the part: an array of datetime64[h]"),
        "bfloat16 tensor": (
            torch.ones(2, dtype=torch.bfloat16),
            "field `x`, row 0 of the part: a tensor of torch.bfloat16",
        ),
    }
    for case, (value, note) in refused.items():
        cells.append(
            Cell(
                group="parquet", case=case, library="pandas", ours=_parquet_by_pandas(value), outcome="error", note=note
            )
        )
    numbers_and_text = [{"x": np.array([1])}, {"x": np.array(["a"])}]
    cells.append(
        Cell(
            group="parquet",
            case="numbers, then text",
            library="pandas",
            ours=lambda folder: write(ParquetSink(folder / "out"), numbers_and_text, folder),
            outcome="error",
            note="field `x`, row 1 of the part: an array of <U1",
        )
    )
    return sorted(cells, key=lambda cell: cell.group)


# ---------------------------------------------------------------------- webdataset


def _read_by_webdataset(path: Path) -> dict[str, Any]:
    """Return the only sample. What `WebDataset(path).decode()` does, which leaves the file open."""
    with path.open("rb") as file:
        sample = next(group_by_keys(tar_file_expander([{"stream": file, "url": str(path)}])))
        decoded: dict[str, Any] = Decoder([])(sample)
    return decoded


def _webdataset(field: str, value: Any, member: str) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        path = write(WebDatasetSink(folder / "out", key="key"), [{"key": "a", field: value}], folder)
        return _read_by_webdataset(path)[member]

    return ours


def _webdataset_round_trip(member: str, value: Any) -> Callable[[Path], Any]:
    def theirs(folder: Path) -> Any:
        with wds.TarWriter(str(folder / "x.tar")) as writer:
            writer.write({"__key__": "a", member: value})
        return _read_by_webdataset(folder / "x.tar")[member]

    return theirs


def _make_webdataset_cells() -> list[Cell]:
    cells = []
    arrays = NUMBERS | {case: value for case, value in OTHERS.items() if isinstance(value, np.ndarray)}
    for case, value in arrays.items():
        cells.append(
            Cell(
                group="webdataset",
                case=case,
                library="webdataset",
                ours=_webdataset("x", value, "x.npy"),
                theirs=_webdataset_round_trip("x.npy", np.asarray(value)),
            )
        )
    for case, field, value, member in (
        ("class", "cls", 3, "cls"),
        ("class, NumPy", "cls", np.int64(3), "cls"),
        ("one text", "txt", "ä", "txt"),
        ("dict", "meta", {"a": [1, 2.5, None]}, "meta.json"),
        ("number", "score", 1.7, "score.json"),
    ):
        cells.append(
            Cell(
                group="webdataset",
                case=case,
                library="webdataset",
                ours=_webdataset(field, value, member),
                theirs=_webdataset_round_trip(member, value),
            )
        )
    refused: dict[str, tuple[str, Any, str]] = {
        "class 1.7": ("cls", 1.7, "field `cls`: a .cls file cannot hold float: it is 1.7"),
        "class 1.7, NumPy": ("cls", np.float32(1.5), "field `cls`: a .cls file cannot hold float32: it is 1.5"),
        "class nan": ("cls", float("nan"), "field `cls`: a .cls file cannot hold float: it is nan"),
        "class None": ("cls", None, "field `cls`: a .cls file cannot hold NoneType"),
        "class masked": ("cls", np.ma.masked, "field `cls`: a .cls file cannot hold MaskedConstant"),
        "masked": ("x", _MASKED, "field `x.npy`: a .npy file cannot hold MaskedArray: it has masked values"),
        "objects": ("x", np.array([1, "a"], object), "field `x.npy`: a .npy file cannot hold ndarray"),
        "longdouble scalar": ("x", np.longdouble(1), "field `x.json`: a .json file cannot hold longdouble"),
        "two keys of one text": ("x", {1: "a", "1": "b"}, "two keys of a dict become the same string"),
    }
    for case, (field, value, note) in refused.items():
        cells.append(
            Cell(
                group="webdataset",
                case=case,
                library="webdataset",
                ours=_webdataset(field, value, field),
                outcome="error",
                note=note,
            )
        )
    return cells


# ---------------------------------------------------------------------- Zarr and HDF5


def _zarr(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        return zarr.open_group(str(_write_column(ZarrSink, value, folder)), mode="r")["x"][...]

    return ours


def _zarr_round_trip(value: Any) -> Callable[[Path], Any]:
    def theirs(folder: Path) -> Any:
        zarr.create_array(str(folder / "x.zarr"), data=value[None])
        return zarr.open_array(str(folder / "x.zarr"), mode="r")[...]

    return theirs


def _read_zarr(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        zarr.create_array(str(folder / "x.zarr"), data=value[None])
        return ZarrSource(str(folder / "x.zarr"))[0]

    return ours


def _read_hdf5(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        with h5py.File(folder / "x.h5", "w") as file:
            file["x"] = value[None]
        return Hdf5Source(str(folder / "x.h5"))[0]["x"]

    return ours


def _read_npy(value: Any) -> Callable[[Path], Any]:
    def ours(folder: Path) -> Any:
        np.save(folder / "x.npy", value[None])
        return NpySource(str(folder / "x.npy"))[0]

    return ours


def _make_store_cells() -> list[Cell]:
    cells = []
    stored = {case: value for case, value in NUMBERS.items() if case not in {"big-endian int32", "no elements"}}
    stored["complex64"] = OTHERS["complex64"]
    for case, value in stored.items():
        cells += [
            Cell(group="zarr", case=case, library="zarr", ours=_zarr(value), theirs=_zarr_round_trip(value)),
            Cell(
                group="source zarr",
                case=case,
                library="NumPy",
                ours=_read_zarr(value),
                theirs=lambda _, value=value: value,
            ),
            Cell(
                group="source hdf5",
                case=case,
                library="NumPy",
                ours=_read_hdf5(value),
                theirs=lambda _, value=value: value,
            ),
        ]
    for case, value in (NUMBERS | OTHERS).items():
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            cells.append(
                Cell(
                    group="source npy",
                    case=case,
                    library="NumPy",
                    ours=_read_npy(value),
                    theirs=lambda folder, value=value: _npz_by_numpy(value)(folder),
                )
            )
    for case, (value, note) in REFUSED.items():
        cells.append(Cell(group="zarr", case=case, library="zarr", ours=_zarr(value), outcome="error", note=note))
    cells.append(
        Cell(
            group="zarr",
            case="longdouble",
            library="zarr",
            ours=_zarr(OTHERS["longdouble"]),
            outcome="error",
            note="field `x` has the dtype float128, which Zarr cannot hold",
        )
    )
    return sorted(cells, key=lambda cell: cell.group)


# ---------------------------------------------------------------------- several rows

_X = np.array([[number, -number] for number in range(5)], np.int16)
ROWS: list[dict[str, Any]] = [{"x": x, "n": -number, "t": f"t{number}"} for number, x in enumerate(_X)]
_TUPLES = [([number, -number], -number, f"t{number}") for number in range(5)]
_COLUMNS = {"x": _X, "n": -np.arange(5), "t": np.array([f"t{number}" for number in range(5)])}
_LISTS = {name: values.tolist() for name, values in _COLUMNS.items()}


def _load_by_numpy(path: Path) -> Any:
    loaded = np.load(path)
    return loaded if isinstance(loaded, np.ndarray) else dict(loaded)


def _load_by_datasets(path: Path) -> Any:
    import datasets

    return datasets.load_from_disk(str(path.parent))[:]


def _load_by_zarr(path: Path) -> Any:
    group = zarr.open_group(str(path), mode="r")
    return {name: group[name][...].astype("U2" if name == "t" else group[name].dtype) for name in _COLUMNS}


def _load_by_webdataset(path: Path) -> Any:
    with path.open("rb") as file:
        samples = list(group_by_keys(tar_file_expander([{"stream": file, "url": str(path)}])))
    return [{name: value for name, value in Decoder([])(sample).items() if name != "__url__"} for sample in samples]


SEVERAL: Sequence[tuple[str, str, Callable[[Path], PartSink], Callable[[Path], Any], Any]] = (
    ("npy", "NumPy", lambda folder: NpySink(folder, field="x"), _load_by_numpy, _X),
    ("npz_shards", "NumPy", NpzShardSink, _load_by_numpy, _COLUMNS),
    (
        "jsonl",
        "DuckDB",
        JsonlSink,
        lambda path: duckdb.sql(f"select * from read_json('{path}', format='newline_delimited')").fetchall(),
        _TUPLES,
    ),
    ("parquet", "DuckDB", ParquetSink, lambda path: duckdb.read_parquet(str(path)).fetchall(), _TUPLES),
    ("huggingface", "datasets", HuggingFaceSink, _load_by_datasets, _LISTS),
    ("zarr", "zarr", lambda folder: ZarrSink(folder, chunk_items=2), _load_by_zarr, _COLUMNS),
    (
        "webdataset",
        "webdataset",
        lambda folder: WebDatasetSink(folder, key="t"),
        _load_by_webdataset,
        [{"__key__": f"t{number}", "x.npy": x, "n.json": -number} for number, x in enumerate(_X)],
    ),
)
"""The sink, the library that reads what it wrote, and what must be there."""


def _make_row_cells() -> list[Cell]:
    cells = [
        Cell(
            group="Several rows",
            case=f"sink {name}, {'one part' if part_items is None else f'parts of {part_items}'}",
            library=library,
            ours=lambda folder, m=make, r=read, n=part_items: r(write(m(folder / "out"), ROWS, folder, n)),
            theirs=lambda _, e=expected: e,
        )
        for name, library, make, read, expected in SEVERAL
        for part_items in (None, 2)
        if part_items is None or name != "npz_shards"
    ]
    order = [4, 0, 3, 3, 1]

    def write_hdf5(folder: Path, **options: Any) -> Hdf5Source:
        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset("x", data=_X, **options)
        return Hdf5Source(str(folder / "x.h5"), keys="x")

    def write_zarr(folder: Path, **options: Any) -> ZarrSource:
        zarr.create_array(str(folder / "x.zarr"), data=_X, **options)
        return ZarrSource(str(folder / "x.zarr"))

    def write_npy(folder: Path, order: Any = "C", version: tuple[int, int] = (1, 0)) -> NpySource:
        with (folder / "x.npy").open("wb") as file:
            np.lib.format.write_array(file, np.asarray(_X, order=order), version)
        return NpySource(str(folder / "x.npy"))

    sources: dict[str, Callable[[Path], Any]] = {
        "hdf5": write_hdf5,
        "hdf5, chunks of 2": lambda folder: write_hdf5(folder, chunks=(2, 1)),
        "hdf5, compressed": lambda folder: write_hdf5(folder, chunks=(3, 2), compression="gzip", shuffle=True),
        "zarr": write_zarr,
        "zarr, chunks of 2": lambda folder: write_zarr(folder, chunks=(2, 1)),
        "zarr of format 2": lambda folder: write_zarr(folder, chunks=(2, 2), zarr_format=2),
        "zarr, shards": lambda folder: write_zarr(folder, chunks=(1, 2), shards=(4, 2)),
        "npy": write_npy,
        "npy in Fortran order": lambda folder: write_npy(folder, "F"),
        "npy of version 3": lambda folder: write_npy(folder, version=(3, 0)),
    }
    cells += [
        Cell(
            group="Several rows",
            case=f"source {name}",
            library="NumPy",
            ours=lambda folder, m=make: (
                (source := m(folder)) and [len(source), *source.__getitems__(order), source[-1]]
            ),
            theirs=lambda _: [len(_X), *_X[order], _X[-1]],
        )
        for name, make in sources.items()
    ]
    return cells


# ---------------------------------------------------------------------- batches and tensors


def _batch(values: Sequence[Any]) -> Callable[[Path], Any]:
    return lambda _: from_source([{"x": value} for value in values]).batch(len(values)).take(1)[0]["x"]


def _make_batch_cells() -> list[Cell]:
    cells = []
    for case, value in (NUMBERS | OTHERS).items():
        is_foreign = case.startswith("big-endian")
        masked = isinstance(value, np.ma.MaskedArray)
        stack = np.ma.stack if masked else np.stack
        cells.append(
            Cell(
                group="Batch",
                case=case,
                library="NumPy",
                ours=_batch([value, value]),
                theirs=lambda _, value=value, stack=stack: stack([value, value]),
                outcome="different" if is_foreign else "equal",
                expected=lambda _, value=value: np.stack([value, value]).astype(value.dtype),
                note="a batch keeps the byte order of its items" if is_foreign else "",
            )
        )
    for case, values in {
        "masked": [_MASKED, _MASKED],
        "masked, then not": [_MASKED, np.arange(4)],
        "not, then masked": [np.arange(4), _MASKED],
        "masked text": [np.array(["a"]), np.ma.masked_array(["b"], [True])],
        "masked records": [np.ma.masked_array(np.zeros(1, _RECORD), [(True, False)])] * 2,
    }.items():
        cells.append(
            Cell(
                group="Batch",
                case=case,
                library="NumPy",
                ours=_batch(values),
                theirs=lambda _, values=values: np.ma.stack(values),  # noqa: PD013 - of NumPy
            )
        )
    for case, values in {
        "two items that differ": [np.array([1, -1], np.int8), np.array([2, -2], np.int8)],
        "two rows in Fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3) + 6 * row) for row in range(2)],
        "reversed, then not": [np.arange(4)[::-1], np.arange(4)],
        "numbers of NumPy": [np.float16(1.5), np.float16(-2)],
        "whole numbers": [3, -4],
        "floats": [0.1, float("-inf")],
        "truth values": [True, False],
    }.items():
        cells.append(
            Cell(
                group="Batch",
                case=case,
                library="NumPy",
                ours=_batch(values),
                theirs=lambda _, values=values: np.stack(list(map(np.asarray, values))),
            )
        )
    tensors = [torch.tensor([1, -2], dtype=torch.int16), torch.tensor([3, -4], dtype=torch.int16)]
    long = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])]
    cells += [
        Cell(
            group="Batch",
            case="tensors",
            library="torch",
            ours=lambda folder: _batch(tensors)(folder).numpy(),
            theirs=lambda _: torch.utils.data.default_collate(tensors).numpy(),
        ),
        Cell(
            group="Batch",
            case="text and None",
            library="torch",
            ours=lambda _: from_source([{"x": "a", "y": None}, {"x": "b", "y": "c"}]).batch(2).take(1)[0],
            theirs=lambda _: {"x": torch.utils.data.default_collate(["a", "b"]), "y": [None, "c"]},
        ),
        Cell(
            group="Batch",
            case="padded",
            library="torch",
            ours=lambda _: (
                from_source([{"x": value.numpy()} for value in long])
                .batch(2, pad=-1, lengths=True, mask=True)
                .take(1)[0]
            ),
            theirs=lambda _: {
                "x": torch.nn.utils.rnn.pad_sequence(long, batch_first=True, padding_value=-1).numpy(),
                "x_length": np.array([3, 1]),
                "x_mask": np.array([[True] * 3, [True, False, False]]),
            },
        ),
    ]
    cells.append(
        Cell(
            group="Batch",
            case="text, then bytes",
            library="NumPy",
            ours=_batch([np.array(["a"]), np.array([b"a"])]),
            outcome="error",
            note="`x` has dtype |S1, but <U1",
        )
    )
    return cells


def _make_tensor_cells() -> list[Cell]:
    cells = []
    for case, value in (NUMBERS | {"complex64": OTHERS["complex64"]}).items():
        native = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("=")))
        cells.append(
            Cell(
                group="Loader",
                case=case,
                library="torch",
                ours=lambda _, value=value: to_tensors({"x": value.copy(order="K")})["x"].numpy(),
                theirs=lambda _, native=native: torch.from_numpy(native.copy()).numpy(),
            )
        )
    records = np.array([(1, 2.5), (2, 3.5)], [("a", "i4"), ("b", "f8")])
    cells.append(
        Cell(
            group="Loader",
            case="a field of records",
            library="torch",
            ours=lambda _: to_tensors({"x": records["b"]})["x"].numpy(),
            theirs=lambda _: torch.tensor(records["b"].tolist(), dtype=torch.float64).numpy(),
        )
    )
    for case, scalar in {
        "float16 scalar": np.float16(1.5),
        "uint64 scalar": np.uint64(2**64 - 1),
        "bool scalar": np.bool_(True),
    }.items():
        cells.append(
            Cell(
                group="Loader",
                case=case,
                library="torch",
                ours=lambda _, scalar=scalar: to_tensors({"x": scalar})["x"].numpy(),
                theirs=lambda _, scalar=scalar: torch.from_numpy(np.array(scalar)).numpy(),
            )
        )
    for case, kept in {"longdouble scalar": np.longdouble(1) / 3, "longdouble": OTHERS["longdouble"]}.items():
        cells.append(
            Cell(
                group="Loader",
                case=case,
                library="NumPy",
                ours=lambda _, kept=kept: to_tensors({"x": kept})["x"],
                theirs=lambda _, kept=kept: kept,
            )
        )
    return cells


CELLS: tuple[Cell, ...] = (
    *_make_numpy_cells(),
    *_make_json_cells(),
    *_make_table_cells(),
    *_make_webdataset_cells(),
    *_make_store_cells(),
    *_make_row_cells(),
    *_make_batch_cells(),
    *_make_tensor_cells(),
)
