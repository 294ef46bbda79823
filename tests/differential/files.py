"""Patterns and lists of files in each source that takes them beside `glob`, `pathlib` and fsspec."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import io
import json
import lzma
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import datasets
import fsspec
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import webdataset
import zarr

from stagepipe import sources
from tests.differential.cell import Cell
from tests.support.source_cases import write_tar

PATTERNS: Final = "Patterns"
SOURCES: Final = "Files of each source"
ENCODINGS: Final = "Encodings and line ends"


# Patterns of `files`


def make_tree(folder: Path) -> Path:
    """Write small files, with the names that patterns stumble over."""
    names = [
        *("a.txt", "b.txt", "b1.txt", "b[1].txt", "B.TXT", "é.txt", "two words.txt", ".hidden.txt", "line\nend.txt"),
        *("sub/a.txt", "sub/deep/a.txt", "sub/deep/er/b.txt", ".cache/a.txt", "sub/.cache/a.txt", "v[2]/a.txt"),
        *("other.md", "~x.txt", "#x.txt", "-x.txt", "{a}.txt", "$HOME.txt", "x.txt.bak", "\udcff.txt"),
    ]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))
    (folder / "folder.txt").mkdir()
    (folder / "empty").mkdir()
    return folder


def find_ours(pattern: Any, **options: Any) -> list[str]:
    return [item["path"] for item in sources.FilesSource(pattern, **options)]


def find_by_glob(pattern: str) -> list[str]:
    names = glob.glob(pattern, recursive=True)  # noqa: PTH207 - it is what is compared
    return sorted({str(Path(name)) for name in names if Path(name).is_file()})


def find_by_pathlib(pattern: str) -> list[str]:
    found = (path for path in pathlib.Path().glob(pattern) if path.is_file())
    return sorted({str(path) for path in found if not any(part.startswith(".") for part in path.parts)})


def find_by_fsspec(url: str) -> list[str]:
    file_system, path = fsspec.core.url_to_fs(url)
    names = [name for name in file_system.glob(path) if file_system.isfile(name)]
    return sorted(f"file://{name}" for name in names)


GLOB_PATTERNS: Final = (
    *("*.txt", "?.txt", "[ab].txt", "[!a].txt", "[a-c]*.txt", "*", "**", "**/*", "**/*.txt", "sub/**", "sub/**/*.txt"),
    *("**/deep/*.txt", "**/deep/**/*.txt", "**/**/*.txt", "*/*.txt", "*/*/*.txt", ".*.txt", ".cache/*.txt", "**/.*/*"),
    *(
        "./*.txt",
        "sub/../*.txt",
        "*.TXT",
        "*.[tT][xX][tT]",
        "[#-]x.txt",
        "é*",
        "two *.txt",
        "*\n*",
        "b[[]1].txt",
        "{a}*",
    ),
    *(
        "a.txt",
        "sub/deep/er/b.txt",
        "***.txt",
        "a**.txt",
        "$HOME.txt",
        "~x.txt",
        "v[[]2]/*.txt",
        "*.txt.*",
        "s*/*/er/*",
    ),
)
PATHLIB_PATTERNS: Final = ("*.txt", "**/*.txt", "sub/**/a.txt", "*/*.txt", "[!a].txt", "**/deep/*.txt", "?.txt")
FSSPEC_PATTERNS: Final = ("*.txt", "sub/*.txt", "sub/**/*.txt", "**/er/*", "[ab].txt", "?.txt", "sub/a.txt")


def _add_links(folder: Path) -> Path:
    """Links to folders: to a parent, to a parent's parent, to each other, to one next to it, to one elsewhere."""
    make_tree(folder / "data")
    for name, target in {
        "data/sub/up": "..",
        "data/sub/deep/top": "../../..",
        "data/sub/self": ".",
        "data/one/two": "../two",
        "data/two/one": "../one",
        "data/next": "sub",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(target)
    for name in ("one", "two"):
        (folder / "data" / name / f"{name}.txt").write_text(name)
    return folder / "data"


def _link_elsewhere(folder: Path) -> None:
    make_tree(folder / "pool")
    (folder / "data").mkdir()
    (folder / "data" / "first").symlink_to("../pool")


def _walk(folder: Path) -> list[str]:
    found = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(_show(str(path.relative_to(folder.parent)) for path in found if path.suffix == ".txt"))


def pattern_cells() -> Iterable[Cell]:
    for pattern in GLOB_PATTERNS:
        yield Cell(
            group=PATTERNS,
            case=f"`{pattern}`".replace("\n", "\\n"),
            library="glob",
            ours=lambda folder, pattern=pattern: _inside(make_tree(folder), lambda: find_ours(pattern)),
            theirs=lambda folder, pattern=pattern: _inside(make_tree(folder), lambda: find_by_glob(pattern)),
        )
    for pattern in PATHLIB_PATTERNS:
        yield Cell(
            group=PATTERNS,
            case=f"`{pattern}`, without hidden files",
            library="pathlib",
            ours=lambda folder, pattern=pattern: _inside(make_tree(folder), lambda: find_ours(pattern)),
            theirs=lambda folder, pattern=pattern: _inside(make_tree(folder), lambda: find_by_pathlib(pattern)),
        )
    for pattern in FSSPEC_PATTERNS:
        is_hidden = pattern in ("*.txt", "sub/**/*.txt")
        yield Cell(
            group=PATTERNS,
            case=f"`file://.../{pattern}`",
            library="fsspec",
            ours=lambda folder, pattern=pattern: _relative(folder, find_ours(f"file://{make_tree(folder)}/{pattern}")),
            theirs=lambda folder, pattern=pattern: _relative(
                folder, find_by_fsspec(f"file://{make_tree(folder)}/{pattern}")
            ),
            expected=lambda folder, pattern=pattern: _show(
                _relative(folder, find_by_fsspec(f"file://{make_tree(folder)}/{pattern}"))
            ),
            outcome="different" if is_hidden else "equal",
            note="a pattern leaves out hidden files, as on this machine; fsspec finds them" if is_hidden else "",
        )
    yield Cell(
        group=PATTERNS,
        case="`**` where links lead to parents, to each other and to neighbours",
        library="os.walk",
        ours=lambda folder: _inside(_add_links(folder).parent, lambda: find_ours("data/**/*.txt")),
        theirs=lambda folder: _walk(_add_links(folder)),
    )
    yield Cell(
        group=PATTERNS,
        case="`**` where links lead to parents, to each other and to neighbours",
        library="glob",
        ours=lambda folder: _inside(_loop(folder), lambda: find_ours("**/*.txt")),
        theirs=lambda folder: _inside(_loop(folder), lambda: find_by_glob("**/*.txt")),
        expected=lambda folder: _inside(_loop(folder), lambda: _walk(Path())),
        outcome="different",
        note="each folder is read once; glob reads a file up to 41 times",
    )
    yield Cell(
        group=PATTERNS,
        case="`**` through a link to a folder elsewhere",
        library="glob",
        ours=lambda folder: _inside(folder, lambda: [_link_elsewhere(folder), find_ours("data/**/*.txt")]),
        theirs=lambda folder: _inside(folder, lambda: [_link_elsewhere(folder), find_by_glob("data/**/*.txt")]),
    )
    yield Cell(
        group=PATTERNS,
        case="a name with `[` that exists, next to what it matches",
        library="glob",
        ours=lambda folder: _inside(make_tree(folder), lambda: find_ours("b[1].txt")),
        theirs=lambda folder: _inside(make_tree(folder), lambda: find_by_glob("b[1].txt")),
        expected=lambda _: ["b[1].txt"],
        outcome="different",
        note="a file that exists is meant; glob finds `b1.txt`",
    )
    yield Cell(
        group=PATTERNS,
        case="a folder with `[` that exists",
        library="glob",
        ours=lambda folder: _inside(make_tree(folder), lambda: find_ours("v[2]/*.txt")),
        theirs=lambda folder: _inside(make_tree(folder), lambda: find_by_glob(f"{glob.escape('v[2]')}/*.txt")),
    )
    yield Cell(
        group=PATTERNS,
        case="one file by four names",
        library="pathlib",
        ours=lambda folder: _inside(
            make_tree(folder), lambda: find_ours(["a.txt", "./a.txt", Path("sub/../a.txt"), f"{folder}/a.txt"])
        ),
        theirs=lambda folder: _inside(make_tree(folder), lambda: [str(Path("a.txt"))]),
    )
    yield Cell(
        group=PATTERNS,
        case="`~`",
        library="pathlib",
        ours=lambda folder: _at_home(make_tree(folder), lambda: _relative(folder, find_ours("~/sub/*.txt"))),
        theirs=lambda folder: _at_home(
            make_tree(folder), lambda: _relative(folder, map(str, (Path("~/sub").expanduser()).glob("*.txt")))
        ),
    )
    for case, pattern, message in REFUSED_PATTERNS:
        yield Cell(
            group=PATTERNS,
            case=case,
            library="-",
            ours=lambda folder, pattern=pattern: _inside(make_tree(folder), lambda: find_ours(pattern)),
            outcome="error",
            note=message,
        )


REFUSED_PATTERNS: Final = (
    ("a list, one entry matches nothing", ["a.txt", "typo*.txt"], "files: no file matches 'typo*.txt'"),
    ("a list, one entry does not exist", ["a.txt", "b[1].txt", "c[1].txt"], "files: no file matches 'c[1].txt'"),
    ("a folder", "sub", "files: 'sub' is a folder; write a pattern: 'sub/*'"),
    ("a pattern that ends with `/`", "*/", "files: no file matches '*/'"),
    ("a pattern that only folders match", "fold*.txt", "files: no file matches 'fold*.txt'"),
    ("an empty list", [], "files: `glob` is an empty list"),
    ("a number in a list", ["a.txt", 3], "files: entry 1 of `glob` is 3"),
    ("None", None, "files: `glob` is None"),
    ("bytes", b"a.txt", "files: `glob` is b'a.txt'"),
    ("braces", "{a,b}.txt", "braces have no meaning in a pattern"),
    ("braces of numbers", "shard-{000..099}.tar", "braces have no meaning in a pattern"),
    ("a URL in a Path", Path("s3://bucket/a.txt"), "if it is a URL, give it as a string"),
    ("an unknown protocol", "nosuch://bucket/a.txt", "cannot open 'nosuch://bucket/a.txt'"),
    ("a user that does not exist", "~no-such-user/a.txt", "files: no file matches '~no-such-user/a.txt'"),
    ("a zero in the name", "a\0.txt", "files: no file matches"),
    ("a name that is too long", "x" * 5000, "files: no file matches"),
)


def _loop(folder: Path) -> Path:
    make_tree(folder)
    (folder / "sub" / "up").symlink_to("..")
    return folder


def _inside(folder: Path, call: Callable[[], Any]) -> Any:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return call()
    finally:
        os.chdir(before)


def _at_home(folder: Path, call: Callable[[], Any]) -> Any:
    before = os.environ.get("HOME", "")
    os.environ["HOME"] = str(folder)
    try:
        return call()
    finally:
        os.environ["HOME"] = before


def _show(names: Iterable[str]) -> list[str]:
    """Leave out hidden files, and those in hidden folders."""
    return [name for name in names if not any(part.startswith(".") for part in Path(name).parts)]


def _relative(folder: Path, names: Iterable[str]) -> list[str]:
    return [name.partition(f"{folder}/")[2] for name in names]


# Each source


@dataclass(frozen=True)
class Format:
    """How a source's file is written, and read by it and by another library. A file holds one number."""

    suffix: str
    library: str
    write: Callable[[Path, int], Any]
    ours: Callable[[Any], list[int]]
    theirs: Callable[[Path], int]
    cases: frozenset[str] = frozenset()
    """Those that apply; empty: all."""


def _read(source: Any, get: Callable[[Any], Any]) -> Callable[[Any], list[int]]:
    return lambda paths: [int(get(item)) for item in source(paths)]


def _write_npz_tar(path: Path, number: int) -> None:
    write_tar(path, {"0.cls": b"%d" % number})


def _read_tar(path: Path) -> int:
    with path.open("rb") as stream:  # `WebDataset` leaves it open
        files = webdataset.tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
        (sample,) = webdataset.tariterators.group_by_keys(files)
        return int(sample["cls"])


def _write_hdf5(path: Path, number: int) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = [number]


def _read_hdf5(path: Path) -> int:
    with h5py.File(path) as file:
        return int(file["x"][0])


def _write_arrow(path: Path, number: int) -> None:
    with pa.ipc.new_stream(path, pa.schema({"x": pa.int64()})) as writer:
        writer.write_table(pa.table({"x": [number]}))


_IN_ONE_FOLDER: Final = frozenset(
    {
        "a pattern",
        "a list",
        "a name with `[`",
        "a `Path`",
        "`~`",
        "no match",
        "an empty list",
        "a list, one entry matches nothing",
    }
)
FORMATS: Final[Mapping[str, Format]] = {
    "files": Format(
        ".bin",
        "pathlib",
        lambda path, number: path.write_bytes(bytes([number])),
        lambda paths: [item["data"][0] for item in sources.FilesSource(paths, read=True)],
        lambda path: path.read_bytes()[0],
    ),
    "text": Format(
        ".txt",
        "pathlib",
        lambda path, number: path.write_text(f"{number}\n"),
        _read(sources.TextSource, lambda item: item["text"]),
        lambda path: int(path.read_text()),
    ),
    "jsonl": Format(
        ".jsonl",
        "json",
        lambda path, number: path.write_text(f"{number}\n"),
        _read(sources.JsonlSource, int),
        lambda path: json.loads(path.read_text()),
    ),
    "csv": Format(
        ".csv",
        "csv",
        lambda path, number: path.write_text(f"x\n{number}\n"),
        _read(sources.CsvSource, lambda row: row["x"]),
        lambda path: int(next(csv.DictReader(io.StringIO(path.read_text())))["x"]),
    ),
    "parquet": Format(
        ".parquet",
        "pandas",
        lambda path, number: pa.parquet.write_table(pa.table({"x": [number]}), path),
        _read(sources.ParquetSource, lambda row: row["x"]),
        lambda path: int(pd.read_parquet(path)["x"][0]),
    ),
    "arrow": Format(
        ".arrow",
        "pandas",
        lambda path, number: pa.feather.write_feather(pa.table({"x": [number]}), path),
        _read(sources.ArrowSource, lambda row: row["x"]),
        lambda path: int(pd.read_feather(path)["x"][0]),
    ),
    "webdataset": Format(
        ".tar", "webdataset", _write_npz_tar, _read(sources.WebdatasetSource, lambda sample: sample["cls"]), _read_tar
    ),
    "npy": Format(
        ".npy",
        "numpy",
        lambda path, number: np.save(path, np.array([number])),
        _read(sources.NpySource, int),
        lambda path: int(np.load(path)[0]),
    ),
    "hdf5": Format(".h5", "h5py", _write_hdf5, _read(sources.Hdf5Source, lambda row: row["x"]), _read_hdf5),
    "zarr": Format(
        ".zarr",
        "zarr",
        lambda path, number: zarr.save_array(str(path), np.array([number])),
        _read(sources.ZarrSource, int),
        lambda path: int(zarr.open(str(path), mode="r")[0]),
    ),
    "huggingface": Format(
        ".arrow",
        "datasets",
        _write_arrow,
        _read(sources.HuggingFaceSource, lambda row: row["x"]),
        lambda path: int(datasets.Dataset.from_file(str(path))[0]["x"]),
        _IN_ONE_FOLDER,
    ),
}


@dataclass(frozen=True)
class Case:
    """What is given to a source in the folder, and what another library finds there; or the words of the error."""

    name: str
    give: Callable[[Path, str], Any]
    find: Callable[[Path, str], Sequence[Path]] | None = None
    message: str = ""


CASES: Final = (
    Case("a pattern", lambda _, end: f"*{end}", lambda folder, end: sorted(folder.glob(f"*{end}"))),
    Case(
        "a list",
        lambda folder, end: [f"b[1]{end}", f"a*{end}", f"{folder}/a{end}"],
        lambda folder, end: [folder / f"a{end}", folder / f"b[1]{end}"],
    ),
    Case("a name with `[`", lambda _, end: f"b[1]{end}", lambda folder, end: [folder / f"b[1]{end}"]),
    Case("a `Path`", lambda folder, end: folder / f"a{end}", lambda folder, end: [folder / f"a{end}"]),
    Case("`~`", lambda _, end: f"~/a{end}", lambda folder, end: [folder / f"a{end}"]),
    Case(
        "`**` past a link to a parent",
        lambda _, end: f"**/*{end}",
        lambda folder, end: sorted([*folder.glob(f"*{end}"), folder / "sub" / f"c{end}"]),
    ),
    Case(
        "a list, one entry matches nothing",
        lambda _, end: [f"a{end}", f"typo*{end}"],
        message="{label}: no file matches 'typo*{end}'",
    ),
    Case("no match", lambda _, end: f"none{end}", message="{label}: no file matches 'none{end}'"),
    Case("an empty list", lambda _, _end: [], message="{label}: `{argument}` is an empty list"),
    Case("a number in a list", lambda _, end: [f"a{end}", 1], message="{label}: entry 1 of `{argument}` is 1"),
)


def _make_files(folder: Path, kind: Format) -> Path:
    (folder / "sub").mkdir()
    (folder / "sub" / "loop").symlink_to("..")
    for number, name in enumerate(("a", "b[1]", "b1", "sub/c")):
        kind.write(folder / f"{name}{kind.suffix}", number)
    return folder


def source_cells() -> Iterable[Cell]:
    for label, kind in FORMATS.items():
        for case in CASES:
            if kind.cases and case.name not in kind.cases:
                continue
            argument = "glob" if label == "files" else "path"
            yield Cell(
                group=SOURCES,
                case=f"{label}: {case.name}",
                library=kind.library if case.find else "-",
                ours=lambda folder, kind=kind, case=case: _read_case(folder, kind, case),
                theirs=lambda folder, kind=kind, case=case: [
                    kind.theirs(path) for path in case.find(_make_files(folder, kind), kind.suffix)
                ],
                outcome="equal" if case.find else "error",
                note=case.message.format(label=label, argument=argument, end=kind.suffix),
            )


def _read_case(folder: Path, kind: Format, case: Case) -> list[int]:
    _make_files(folder, kind)
    return _at_home(folder, lambda: _inside(folder, lambda: kind.ours(case.give(folder, kind.suffix))))


# Encodings


TEXT: Final = "x,é\n1,ü\n2,日本\n"
ENCODED: Final = {
    "UTF-8": TEXT.encode(),
    "UTF-8 with a byte order mark": codecs.BOM_UTF8 + TEXT.encode(),
    "UTF-16": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "UTF-16, big-endian": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "UTF-16 without a mark": TEXT.encode("utf-16-le"),
    "UTF-16, big-endian, without a mark": TEXT.encode("utf-16-be"),
    "UTF-32": codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
    "UTF-32, big-endian": codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
    "UTF-32 without a mark": TEXT.encode("utf-32-le"),
    "Latin-1": "x,é\n1,ü\n".encode("latin-1"),
    "Shift JIS": "x,日本\n1,日\n".encode("shift-jis"),
    "GB 18030": "x,日本\n1,日\n".encode("gb18030"),
}
LINES: Final = {
    "`\\r\\n`": b"a\r\nb\r\n",
    "no line end at the end": b"a\nb",
    "empty lines": b"\na\n\n\nb\n\n",
    "an empty file": b"",
    "one line end": b"\n",
    "line separators of Unicode": "a\u2028b\u0085c\u2029d\n".encode(),
    "form feeds and vertical tabs": b"a\x0cb\x0bc\x1cd\n",
    "zeros in a line": b"a\0b\nc\n",
    "a mark within the file": b"a\n" + codecs.BOM_UTF8 + b"b\n",
    "spaces at both ends": b"  a \t\n\t b\n",
    "a line of 3 MB": b"x" * 3_000_000 + b"\ny\n",
}


def _write(folder: Path, data: bytes, name: str = "a.txt") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def _read_lines(data: bytes) -> list[dict[str, str]]:
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="\n") as file:
        return [{"text": line.removesuffix("\n").removesuffix("\r")} for line in file]


def _encode(value: Mapping[str, Any], encoding: str) -> bytes:
    return f"{json.dumps(value, ensure_ascii=False)}\n".encode(encoding)


def encoding_cells() -> Iterator[Cell]:
    readers: dict[str, tuple[str, Callable[[str], Any], Callable[[bytes], Any]]] = {
        "text": ("io", lambda path: list(sources.TextSource(path)), _read_lines),
        "csv": (
            "pandas",
            lambda path: list(sources.CsvSource(path)),
            lambda data: pd.read_csv(io.BytesIO(data), dtype=str).to_dict("records"),
        ),
    }
    for label, (library, ours, theirs) in readers.items():
        for encoding, data in ENCODED.items():
            is_equal = encoding.startswith("UTF-8")
            is_wide = encoding.startswith(("UTF-16", "UTF-32"))
            yield Cell(
                group=ENCODINGS,
                case=f"{label}: {encoding}",
                library=library if is_equal else "-",
                ours=lambda folder, ours=ours, data=data: ours(_write(folder, data)),
                theirs=lambda _, theirs=theirs, data=data: theirs(data),
                outcome="equal" if is_equal else "error",
                note="" if is_equal else f"it is in {encoding[:6]}, not in UTF-8" if is_wide else "is not UTF-8",
            )
    for case, data in LINES.items():
        yield Cell(
            group=ENCODINGS,
            case=f"text: {case}",
            library="io",
            ours=lambda folder, data=data: list(sources.TextSource(_write(folder, data))),
            theirs=lambda _, data=data: _read_lines(data),
        )
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "latin-1"):
        is_equal = encoding.startswith("utf-8")
        yield Cell(
            group=ENCODINGS,
            case=f"jsonl: {encoding}",
            library="pandas" if is_equal else "-",
            ours=lambda folder, encoding=encoding: list(
                sources.JsonlSource(_write(folder, _encode({"t": "é"}, encoding)))
            ),
            theirs=lambda _, encoding=encoding: pd.read_json(
                io.StringIO(_encode({"t": "é"}, encoding).decode(encoding)), lines=True
            ).to_dict("records"),
            outcome="equal" if is_equal else "error",
            note="" if is_equal else "is not UTF-8" if encoding == "latin-1" else f"it is in {encoding[:6].upper()}",
        )
    yield from _jsonl_cells()
    yield from _csv_cells()
    yield from _compressed_cells()


DIALECTS: Final[Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "commas in quotes": ('a,b\n"x,y",z\n', {}, {}),
    "quotes in quotes": ('a,b\n"say ""no""",""""\n', {}, {}),
    "line ends in quotes": ('a,b\n"two\nlines","\r\n"\n"\n",z\n', {}, {}),
    "a quoted header": ('"a,b","c\nd"\n1,2\n', {}, {}),
    "empty fields": ('a,b,c\n,,\n"",1,\n', {}, {}),
    "spaces around fields": ("a, b \n 1 , 2\n", {}, {}),
    "`\\r\\n`": ("a,b\r\n1,2\r\n3,4\r\n", {}, {}),
    "no line end at the end": ("a,b\n1,2", {}, {}),
    "empty lines": ("\na,b\n\n1,2\n\n\n3,4\n\n", {}, {}),
    "one column": ("a\n1\n2\n", {}, {}),
    "no rows": ("a,b\n", {}, {}),
    "words that pandas takes for null": ("a,b\nNA,null\nnan,None\n", {}, {}),
    "numbers that are not changed": ("a,b\n007,1e5\n+1,0.10\n", {}, {}),
    "tabs": ("a\tb\n1,5\t2\n", {"delimiter": "\t"}, {"sep": "\t"}),
    "semicolons, quotes `'`": ("a;b\n'x;y';\"z\n", {"delimiter": ";", "quote": "'"}, {"sep": ";", "quotechar": "'"}),
    "no quotes": ('a,b\n"x,y"\n', {"quote": ""}, {"quoting": csv.QUOTE_NONE}),
    "no header": ("1,2\n3,4\n", {"names": ["a", "b"]}, {"names": ["a", "b"]}),
    "two of three columns": ("a,b,c\n1,2,3\n", {"columns": ["a", "c"]}, {"usecols": ["a", "c"]}),
    "types": (
        "i,f,b,s\n-7,-1.5,true,1\n9007199254740993,1e300,false,x\n",
        {"types": {"i": "int", "f": "float", "b": "bool"}},
        {"dtype": {"i": "int64", "f": "float64", "b": "bool", "s": str}},
    ),
}
"""The file, the arguments of the source, and those of pandas."""


def _csv_cells() -> Iterator[Cell]:
    for case, (text, options, arguments) in DIALECTS.items():
        yield Cell(
            group=ENCODINGS,
            case=f"csv: {case}",
            library="pandas",
            ours=lambda folder, text=text, options=options: list(
                sources.CsvSource(_write(folder, text.encode()), **options)
            ),
            theirs=lambda _, text=text, arguments=arguments: pd.read_csv(
                io.BytesIO(text.encode()), **{"dtype": str, "keep_default_na": False, "index_col": False, **arguments}
            ).to_dict("records"),
        )
    for case, data, message in (
        ("a row with a field less", b"a,b\n1,2\n3\n", "a.txt:3: 1 fields, where the header has 2"),
        ("a row with a field more", b"a,b\n1,2,3\n", "a.txt:2: 3 fields, where the header has 2"),
        ("a quote that does not end", b'a,b\n"1,2\n', "a quoted string does not end"),
        ("a quote within a field", b'a,b\n1"2"3,"4"5\n', "not CSV"),
        ("`\\r` as line end", b"a,b\r1,2\r", "does not end a line here"),
    ):
        yield Cell(
            group=ENCODINGS,
            case=f"csv: {case}",
            library="-",
            ours=lambda folder, data=data: list(sources.CsvSource(_write(folder, data))),
            outcome="error",
            note=message,
        )


def _compressed_cells() -> Iterator[Cell]:
    rows = range(1000)
    content: dict[str, tuple[Callable[[str], Any], bytes, Any]] = {
        "text": (
            sources.TextSource,
            "".join(f"é {row}\n" for row in rows).encode(),
            [{"text": f"é {n}"} for n in rows],
        ),
        "csv": (
            sources.CsvSource,
            "".join(["x,y\n", *(f"é,{row}\n" for row in rows)]).encode(),
            [{"x": "é", "y": str(row)} for row in rows],
        ),
        "jsonl": (
            sources.JsonlSource,
            b"".join(_encode({"x": -row}, "utf-8") for row in rows),
            [{"x": -n} for n in rows],
        ),
    }
    for label, (source, data, expected) in content.items():
        for tool, suffix in {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz"}.items():
            for case, cut in (("", 0), (", two streams in one file", len(data) // 3)):
                yield Cell(
                    group=ENCODINGS,
                    case=f"{label}: {suffix}{case}",
                    library=tool,
                    ours=lambda folder, source=source, data=data, tool=tool, suffix=suffix, cut=cut: list(
                        source(_write(folder, _compress(tool, data[:cut], data[cut:]), f"a.txt{suffix}"))
                    ),
                    theirs=lambda _, expected=expected: expected,
                )


def _compress(tool: str, *parts: bytes) -> bytes:
    """Compress each part that is not empty by a program."""
    run = [subprocess.run([tool, "-c"], input=part, capture_output=True, check=True) for part in parts if part]
    return b"".join(done.stdout for done in run)


def _jsonl_cells() -> Iterator[Cell]:
    for case, data in {
        "numbers": b"1\n-0\n1e400\n0.1\n12345678901234567890123\n",
        "NaN and Infinity": b"[NaN, Infinity, -Infinity]\n",
        "escapes": b'"\\u00e9\\ud83d\\ude00\\n\\/"\n',
        "`\\r\\n`, empty lines and spaces": b' {"a": 1} \r\n\r\n\n\t[2]\n',
        "no line end at the end": b"1\n2",
        "an empty file": b"",
    }.items():
        yield Cell(
            group=ENCODINGS,
            case=f"jsonl: {case}",
            library="json",
            ours=lambda folder, data=data: list(sources.JsonlSource(_write(folder, data))),
            theirs=lambda _, data=data: [json.loads(line) for line in data.decode().splitlines() if line.strip()],
        )
    for suffix, compress in {".gz": gzip.compress, ".xz": lzma.compress}.items():
        yield Cell(
            group=ENCODINGS,
            case=f"jsonl: UTF-16 in {suffix}",
            library="-",
            ours=lambda folder, suffix=suffix, compress=compress: list(
                sources.JsonlSource(_write(folder, compress(_encode({"t": "é"}, "utf-16")), f"a.jsonl{suffix}"))
            ),
            outcome="error",
            note="it is in UTF-16, not in UTF-8",
        )
    for case, data, message in (
        ("zeros after the last line", b"1\n" + bytes(100), "a.txt:2: column 1: not JSON"),
        ("zeros within a value", b'{"a": "x\0y"}\n', "a.txt:1: column 9: not JSON"),
        ("half of a line", b'1\n{"a": ', "a.txt:2: column 6: not JSON"),
        ("two values in a line", b"1\n2 3\n", "a.txt:2: column 3: not JSON"),
        ("`\\r` as line end", b"1\r2\r", "a.txt:1: column 3: not JSON"),
        ("an array over several lines", b"[\n1,\n2]\n", "a.txt:1: column 2: not JSON"),
        ("nested 100,000 deep", b"[" * 100_000 + b"\n", "a.txt:1: RecursionError"),
        ("a number of 5,000 digits", b"9" * 5000 + b"\n", "a.txt:1: Exceeds the limit"),
        ("encoded surrogates", b'"\xed\xa0\x80"\n', "byte 2 of the line is not UTF-8"),
        ("a tar file", b"0.json".ljust(257, b"\0") + b"ustar\0" + bytes(300), "a.txt:1: column 2: not JSON"),
    ):
        yield Cell(
            group=ENCODINGS,
            case=f"jsonl: {case}",
            library="-",
            ours=lambda folder, data=data: list(sources.JsonlSource(_write(folder, data))),
            outcome="error",
            note=message,
        )


CELLS: tuple[Cell, ...] = (*pattern_cells(), *source_cells(), *encoding_cells())
