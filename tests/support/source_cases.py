"""The cases of tests/integration/test_sources.py: each source, and the files that it reads."""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COUNT = 41
"""Records of each case: a prime, so that no size divides it."""


@dataclass(frozen=True)
class SourceCase:
    """A source, how its files are written into a folder, and how to tell which record an item is."""

    uses: str
    write: Callable[[Path], dict[str, Any]]
    """Returns the `with` of the source. The records have the numbers 0 ... COUNT - 1, in this order."""
    get_id: Callable[[Any], int]


CASES: dict[str, SourceCase] = {}


def case(source: str, name: str = "", get_id: Callable[[Any], int] = lambda item: item["id"]) -> Callable[[Any], Any]:
    """Add a case to the contract. `get_id` receives what `tests.support.pipelines.plain` makes of an item."""

    def add(write: Callable[[Path], dict[str, Any]]) -> Callable[[Path], dict[str, Any]]:
        CASES[name or source] = SourceCase(f"stagepipe.sources.{source}", write, get_id)
        return write

    return add


@case("jsonl")
def write_jsonl(folder: Path) -> dict[str, Any]:
    for part, numbers in enumerate((range(17), range(17, COUNT))):
        lines = [json.dumps({"id": number, "text": "é" * (number % 5)}) for number in numbers]
        (folder / f"{part}.jsonl").write_text("\n\n".join(lines))
    return {"path": str(folder / "*.jsonl")}


@case("text", get_id=lambda item: int(item["text"].partition(" ")[0]))
def write_text(folder: Path) -> dict[str, Any]:
    for part, numbers in enumerate((range(17), range(17, 17), range(17, COUNT))):
        (folder / f"{part}.txt").write_bytes(b"".join(b"%d \xc3\xa9\r\n" % number for number in numbers))
    return {"path": [str(folder / "[12].txt"), str(folder / "0.txt")]}


@case("csv")
def write_csv(folder: Path) -> dict[str, Any]:
    for part, numbers in enumerate((range(17), range(17, COUNT))):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text, quoted"])
            writer.writerows([number, 'two\nlines, and a "quote"' * (number % 3)] for number in numbers)
    return {"path": str(folder / "*.csv"), "types": {"id": "int"}}


@case("parquet")
def write_parquet(folder: Path) -> dict[str, Any]:
    for part, numbers in enumerate((range(17), range(17, COUNT))):
        pq.write_table(make_table(numbers), folder / f"{part}.parquet", row_group_size=5)
    return {"path": str(folder / "*.parquet")}


@case("arrow")
def write_arrow(folder: Path) -> dict[str, Any]:
    with pa.ipc.new_file(folder / "0.arrow", make_table(()).schema) as writer:
        writer.write_table(make_table(range(17)), max_chunksize=5)
    with pa.ipc.new_stream(folder / "1.arrow", make_table(()).schema) as writer:
        writer.write_table(make_table(range(17, COUNT)), max_chunksize=7)
    return {"path": str(folder / "*.arrow")}


def make_table(numbers: Iterable[int]) -> pa.Table:
    rows = [{"id": number, "vector": [float(number)] * 3, "text": str(number)} for number in numbers]
    types = {"id": pa.int64(), "vector": pa.list_(pa.float32()), "text": pa.string()}
    return pa.Table.from_pylist(rows, pa.schema(types))


@case("webdataset", get_id=lambda item: item["id.cls"])
def write_webdataset(folder: Path) -> dict[str, Any]:
    for part, numbers in enumerate((range(17), range(17, COUNT))):
        members = [(f"{part}/{number:04}.{end}", number) for number in numbers for end in ("id.cls", "bin")]
        write_tar(folder / f"{part}.tar", {name: b"%d" % number for name, number in members})
    return {"path": str(folder / "*.tar")}


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


@case("files", "files of URLs", get_id=lambda item: int(item["data"]))
def write_files(folder: Path) -> dict[str, Any]:
    for number in range(COUNT):
        (folder / f"{number:02}.txt").write_text(str(number))
    return {"glob": f"file://{folder}/*.txt", "read": True}


@case("jsonl", "jsonl of URLs")
def write_jsonl_of_urls(folder: Path) -> dict[str, Any]:
    write_jsonl(folder)
    return {"path": [f"file://{folder}/1.jsonl", f"file://{folder}/0*"]}
