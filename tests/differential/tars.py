"""Layouts of tar files beside `tarfile` and webdataset."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import webdataset

import stagepipe
from stagepipe.sources import WebdatasetSource
from tests.differential.cell import Cell

Members = Mapping[str, bytes]
GROUP: Final = "Tar files"
PLAIN: Final[Members] = {"0.jpg": b"\xff\xd8", "0.cls": b"7", "1.jpg": b"", "1.cls": b"8"}
FORMATS: Final = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def read_ours(path: Path | list[Path], **arguments: Any) -> list[Any]:
    return list(WebdatasetSource(path, **{"decode": False, **arguments}))


def read_webdataset(*paths: Path, decode: bool = False) -> list[Any]:
    """Read tar files by webdataset's steps; its own `WebDataset` leaves the files open."""
    samples: list[Any] = []
    for path in paths:
        with path.open("rb") as stream:
            files = webdataset.tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            samples += webdataset.tariterators.group_by_keys(files)
    if decode:
        samples = list(webdataset.filters.decode()(samples))
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


def read_tarfile(path: Path) -> list[Any]:
    """Group the files of a tar by their name up to the first dot. For plain names only."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member).read()) for member in archive if member.isfile()]
    return [
        {"__key__": key, **{name.partition(".")[2]: data for name, data in run}}
        for key, run in groupby(files, key=lambda file: file[0].partition(".")[0])
    ]


def read_gnu_tar(path: Path) -> list[Any]:
    """Group the files that GNU tar extracts. webdataset reads with `tarfile`, as stagepipe does; this does not."""
    folder = path.parent / "extracted"
    folder.mkdir()
    subprocess.run(["tar", "-xf", path, "-C", folder], check=True)
    listed = subprocess.run(["tar", "-tf", path, "--quoting-style=literal"], check=True, capture_output=True)
    names = [name for name in listed.stdout.decode().splitlines() if (folder / name).is_file()]
    return [
        {"__key__": key, **{name.removeprefix(f"{key}."): (folder / name).read_bytes() for name in members}}
        for key, members in groupby(names, key=get_key)
    ]


def get_key(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **attributes: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    archive.addfile(member, io.BytesIO(data))


def write(path: Path, members: Members = PLAIN, **options: Any) -> Path:
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members.items():
            add(archive, name, data)
    return path


def make(folder: Path, members: Members = PLAIN, **options: Any) -> Path:
    return write(folder / "a.tar", members, **options)


def change(folder: Path, edit: Callable[[bytes], bytes], members: Members = PLAIN, name: str = "a.tar") -> Path:
    """Write the bytes that `edit` makes of a whole tar."""
    path = folder / name
    path.write_bytes(edit(make(folder, members, format=tarfile.GNU_FORMAT).read_bytes()))
    return path


# Names


NAMES: Final[Mapping[str, Members]] = {
    "plain names": PLAIN,
    "one member a sample": {f"{number}.bin": bytes([number]) for number in range(9)},
    "a prefix `./`": {f"./{name}": data for name, data in PLAIN.items()},
    "folders in the names": {f"a/b/{name}": data for name, data in PLAIN.items()},
    "dots in the folders": {f"v1.2/x.y/{name}": data for name, data in PLAIN.items()},
    "equal names in two folders": {"a/0.cls": b"1", "b/0.cls": b"2"},
    "several dots": {"0.seg.png": b"1", "0.seg.json": b"2", "1.left.png": b"3"},
    "keys with a dot share what is before it": {"v1.0.txt": b"1", "v1.1.txt": b"2"},
    "upper case": {"0.JPG": b"1", "0.Cls": b"2"},
    "names beyond ASCII": {"é/日本.jpg": b"1", "é/日本.cls": b"2"},
    "spaces and signs": {"a b/it's [1] & more.jpg": b"1", "-.jpg": b"2", "~.jpg": b"3"},
    "line ends in a name": {"a\nb.jpg": b"1", "a\nb.cls": b"2"},
    "files of no sample between": {"readme": b"no", "0.jpg": b"1", "LICENSE": b"no", "0.cls": b"2"},
    "hidden files": {".DS_Store": b"no", "0.jpg": b"1", ".gitignore": b"no", "0.cls": b"2"},
    "metadata of webdataset": {"__meta__/0.json": b"no", "__index__": b"no", "0.jpg": b"1"},
    "empty files": {"0.jpg": b"", "0.cls": b"", "1.jpg": b""},
    "sizes around a block": {f"{size}.bin": b"x" * size for size in (1, 511, 512, 513, 1023, 1024, 1025)},
    "a member of 3 MB": {"0.bin": bytes(3_000_000), "1.bin": b"1"},
    "200 samples": {f"{number:05}.{end}": b"%d" % number for number in range(200) for end in ("a", "b")},
}
LONG_NAMES: Final = {
    "name of 120 characters": {"folder/" * 10 + "x" * 50 + ".jpg": b"1", "folder/" * 10 + "x" * 50 + ".cls": b"2"},
    "name of 400 characters": {"d/" * 50 + "x" * 300 + ".jpg": b"1", "d/" * 50 + "x" * 300 + ".cls": b"2"},
    "name of 4,000 characters": {"d/" * 1000 + "x" * 2000 + ".jpg": b"1", "0.jpg": b"2"},
}
LAYOUTS: Final[Mapping[str, Callable[[Path], Path]]] = {
    **{name: partial(make, members=members) for name, members in NAMES.items()},
    **{f"format {name}": partial(make, format=number) for name, number in FORMATS.items()},
    **{
        f"{name}, {kind}": partial(make, members=members, format=number)
        for name, members in LONG_NAMES.items()
        for kind, number in FORMATS.items()
        if kind != "ustar" or "120" in name
    },
    "pax headers for all members, as `git archive` writes": partial(
        make, format=tarfile.PAX_FORMAT, pax_headers={"comment": "0123456789abcdef"}
    ),
    "names that are not UTF-8": partial(
        make, members={"\udcff\udcfe.jpg": b"1", "\udcff\udcfe.cls": b"2"}, errors="surrogateescape"
    ),
}


def _compare_with_webdataset(writers: Mapping[str, Callable[[Path], Path]]) -> Iterable[Cell]:
    for name, writer in writers.items():
        yield Cell(
            group=GROUP,
            case=name,
            library="webdataset",
            ours=lambda folder, writer=writer: read_ours(writer(folder)),
            theirs=lambda folder, writer=writer: read_webdataset(writer(folder)),
        )


def layout_cells() -> Iterable[Cell]:
    yield from _compare_with_webdataset(LAYOUTS)
    for name in ("plain names", "sizes around a block", "several dots", "200 samples"):
        yield Cell(
            group=GROUP,
            case=name,
            library="tarfile",
            ours=lambda folder, name=name: read_ours(LAYOUTS[name](folder)),
            theirs=lambda folder, name=name: read_tarfile(LAYOUTS[name](folder)),
        )
    for name in GNU_TAR_LAYOUTS:
        yield Cell(
            group=GROUP,
            case=name,
            library="GNU tar",
            ours=lambda folder, name=name: read_ours(LAYOUTS[name](folder)),
            theirs=lambda folder, name=name: read_gnu_tar(LAYOUTS[name](folder)),
        )


GNU_TAR_LAYOUTS: Final = (
    *("plain names", "folders in the names", "dots in the folders", "equal names in two folders", "several dots"),
    *("names beyond ASCII", "spaces and signs", "empty files", "sizes around a block", "a member of 3 MB"),
    *("200 samples", "format ustar", "format gnu", "format pax"),
    *("name of 120 characters, ustar", "name of 120 characters, gnu", "name of 120 characters, pax"),
    "pax headers for all members, as `git archive` writes",
)


# What else a tar may hold


def write_special(folder: Path, **attributes: Any) -> Path:
    """Write a tar with a member of another type in its middle."""
    with tarfile.open(folder / "a.tar", "w") as archive:
        add(archive, "0.cls", b"1")
        add(archive, **attributes)
        add(archive, "1.cls", b"2")
    return folder / "a.tar"


def write_sparse(folder: Path, options: str, data: bytes = b"begin" + bytes(1 << 20) + b"end") -> Path:
    """Let GNU tar write a file with a hole, and one after it."""
    (folder / "0.bin").write_bytes(b"")
    with (folder / "0.bin").open("r+b") as file:
        file.write(data[:5])
        file.seek(len(data) - 3)
        file.write(data[-3:])
    (folder / "1.bin").write_bytes(b"after")
    subprocess.run(["tar", *options.split(), "-cSf", "a.tar", "0.bin", "1.bin"], cwd=folder, check=True)
    return folder / "a.tar"


def make_old(data: bytes) -> bytes:
    """Make a header of the format of 1979 of each header: without the mark `ustar`, and with its own checksum."""
    blocks = [data[at : at + 512] for at in range(0, len(data), 512)]
    for number, block in enumerate(blocks):
        if block[257:262] == b"ustar":
            plain = block[:148] + b" " * 8 + block[156:257] + bytes(255)
            blocks[number] = plain[:148] + b"%06o\0 " % sum(plain) + plain[156:]
    return b"".join(blocks)


CHANGES: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "the format of 1979": make_old,
    "one block of zeros at the end": lambda data: data[:4096],
    "a megabyte of zeros at the end": lambda data: data + bytes(1 << 20),
}
COMPRESSIONS: Final = {
    "tar.gz": gzip.compress,
    "tgz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tbz2": bz2.compress,
    "tar.xz": lzma.compress,
    "txz": lzma.compress,
    "TAR.GZ": gzip.compress,
}
SPARSE: Final = ("--format=gnu", *(f"--format=pax --sparse-version={version}" for version in ("0.0", "0.1", "1.0")))


def special_cells() -> Iterable[Cell]:
    writers: dict[str, Callable[[Path], Path]] = {
        "a folder as a member": partial(write_special, name="1", type=tarfile.DIRTYPE),
        "a folder whose name has a dot": partial(write_special, name="folder.jpg", type=tarfile.DIRTYPE),
        "a contiguous file": partial(write_special, name="0.jpg", type=tarfile.CONTTYPE, data=b"data"),
        "a link that is part of no sample": partial(
            write_special, name="latest", type=tarfile.SYMTYPE, linkname="0.cls"
        ),
        "no member": partial(make, members={}),
        **{f"sparse file, {options}": partial(write_sparse, options=options) for options in SPARSE},
        **{name: partial(change, edit=edit) for name, edit in CHANGES.items()},
        **{
            f"compressed, .{suffix}": partial(change, edit=edit, name=f"b.{suffix}")
            for suffix, edit in COMPRESSIONS.items()
        },
    }
    yield from _compare_with_webdataset(writers)
    yield from (
        Cell(
            group=GROUP,
            case=f"sparse file, {options}",
            library="GNU tar",
            ours=lambda folder, options=options: read_ours(write_sparse(folder, options)),
            theirs=lambda folder, options=options: read_gnu_tar(write_sparse(folder, options)),
        )
        for options in SPARSE
    )
    yield Cell(
        group=GROUP,
        case="two gzip streams in one file",
        library="tarfile",
        ours=lambda folder: read_ours(_compress_twice(folder)),
        theirs=lambda folder: read_tarfile(_compress_twice(folder)),
    )
    yield Cell(
        group=GROUP,
        case="an empty shard between two others",
        library="webdataset",
        ours=lambda folder: read_ours(_write_shards(folder).with_name("*.tar")),
        theirs=lambda folder: read_webdataset(*(_write_shards(folder).with_name(f"{part}.tar") for part in range(3))),
    )
    yield Cell(
        group=GROUP,
        case="one key in two shards",
        library="webdataset",
        ours=lambda folder: read_ours([write(folder / "0.tar"), write(folder / "1.tar")]),
        theirs=lambda folder: read_webdataset(write(folder / "0.tar"), write(folder / "1.tar")),
    )
    yield Cell(
        group=GROUP,
        case="through a pipeline",
        library="webdataset",
        ours=lambda folder: stagepipe.from_source(
            stagepipe.defer(WebdatasetSource, str(make(folder)), decode=False)
        ).take(9),
        theirs=lambda folder: read_webdataset(make(folder)),
    )


def _compress_twice(folder: Path) -> Path:
    return change(folder, lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]), name="b.tar.gz")


def _write_shards(folder: Path) -> Path:
    write(folder / "0.tar")
    write(folder / "2.tar", {"2.jpg": b"2"})
    return write(folder / "1.tar", {})


# Fields


def save(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


FIELDS: Final = {
    "txt": "é\n",
    "text": "\ufeffmarked",
    "json": '{"a": [1, 2.5, null, "é"]}',
    "cls": " 7\n",
    "index": "-12",
    "part.json": "[]",
    "jpg.txt": "no picture",
    "bin": b"\0\1",
    "npy": save(np.arange(6, dtype=">i2").reshape(2, 3)),
    "a.npy": save(np.float32(1.5)),
    "b.npy": save(np.empty((0, 3), bool)),
    "c.npy": save(np.array(["a", "bc"])),
    "d.npy": save(np.asfortranarray(np.eye(3))),
}
"""The content of a field, by its name. Each is decoded by both."""
DIFFERENT_FIELDS: Final = {"id": b"7", "transcript": b"a", "jsn": b"{}", "npz": b"", "inx": b"7"}


def _make_field(folder: Path, field: str, content: str | bytes) -> Path:
    return make(folder, {f"0.{field}": content.encode() if isinstance(content, str) else content})


def field_cells() -> Iterable[Cell]:
    for field, content in {**FIELDS, **DIFFERENT_FIELDS}.items():
        is_different = field in DIFFERENT_FIELDS
        if field == "npz":
            file = io.BytesIO()
            np.savez(file, a=np.arange(3))
            content = file.getvalue()  # noqa: PLW2901 - a file of several arrays
        yield Cell(
            group=GROUP,
            case=f"field `.{field}` decoded",
            library="webdataset",
            ours=lambda folder, field=field, content=content: read_ours(
                _make_field(folder, field, content), decode=True
            ),
            theirs=lambda folder, field=field, content=content: read_webdataset(
                _make_field(folder, field, content), decode=True
            ),
            expected=lambda _, field=field, content=content: [{"__key__": "0", field: content}],
            outcome="different" if is_different else "equal",
            note="is left as bytes; webdataset decodes it" if is_different else "",
        )
    for case, members, sample, note in (
        (
            "hidden files in a folder",
            {"d/._0.jpg": b"no", "d/0.jpg": b"1"},
            {"__key__": "d/0", "jpg": b"1"},
            "webdataset makes a sample `d/` of it",
        ),
        (
            "a name that ends with a dot",
            {"0.": b"no", "1.jpg": b"1"},
            {"__key__": "1", "jpg": b"1"},
            "webdataset makes a field without a name of it",
        ),
    ):
        yield Cell(
            group=GROUP,
            case=case,
            library="webdataset",
            ours=lambda folder, members=members: read_ours(make(folder, members)),
            theirs=lambda folder, members=members: read_webdataset(make(folder, members)),
            expected=lambda _, sample=sample: [sample],
            outcome="different",
            note=f"is part of no sample; {note}",
        )


# What is refused

_HEADER: Final = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000000,), }\n"
_HUGE_ARRAY: Final = b"\x93NUMPY\1\0" + len(_HEADER).to_bytes(2, "little") + _HEADER
UNREADABLE_FIELDS: Final = {
    "an empty `.npy`": ("npy", b"", "a.tar, byte 0: 0.npy: cannot be decoded"),
    "half of an `.npy`": ("npy", save(np.arange(100))[:300], "a.tar, byte 0: 0.npy: cannot be decoded"),
    "an `.npy` with a damaged header": ("npy", b"\x93NUMPY\1\0\xff\xffxx", "0.npy: cannot be decoded"),
    "an `.npy` of 8 EB": ("npy", _HUGE_ARRAY, "0.npy: cannot be decoded"),
    "an `.npy` of objects": ("npy", save(np.array([{}]), allow_pickle=True), "0.npy: cannot be decoded"),
    "text as `.npy`": ("npy", b"1 2 3", "0.npy: cannot be decoded"),
    "JSON nested 100,000 deep": ("json", b"[" * 100_000, "0.json: cannot be decoded (RecursionError"),
    "half of a `.json`": ("json", b'{"a": ', "0.json: cannot be decoded"),
    "an empty `.json`": ("json", b"", "0.json: cannot be decoded"),
    "a `.txt` in Latin-1": ("txt", "é".encode("latin-1"), "0.txt: cannot be decoded (UnicodeDecodeError"),
    "a word as `.cls`": ("cls", b"cat", "0.cls: cannot be decoded"),
    "an empty `.cls`": ("cls", b"", "0.cls: cannot be decoded"),
    "a `.cls` of 5,000 digits": ("cls", b"9" * 5000, "0.cls: cannot be decoded"),
}
REFUSED: Final[Mapping[str, tuple[Callable[[Path], Path], str]]] = {
    "members that do not follow each other": (
        partial(make, members={"0.a": b"1", "1.a": b"2", "0.b": b"3", "1.b": b"4"}),
        "a.tar: the members of sample '0' do not follow each other: 0.b (byte 2048)",
    ),
    "the same, far apart": (
        partial(make, members={"7.a": b"", **{f"x{number}.a": b"" for number in range(500)}, "7.b": b""}),
        "the members of sample '7' do not follow each other",
    ),
    "`0.a` and `./0.b`": (partial(make, members={"0.a": b"1", "./0.b": b"2"}), "the members of sample '0'"),
    "a sample that comes twice": (
        lambda folder: _write_list(folder, ["0.a", "1.a", "0.a"]),
        "a.tar: the members of sample '0' do not follow each other",
    ),
    "a member that comes twice": (
        lambda folder: _write_list(folder, ["0.a", "0.a"]),
        "sample '0' has two members `.a`",
    ),
    "two members that differ in case": (
        lambda folder: _write_list(folder, ["0.a", "0.A"]),
        "sample '0' has two members `.a`",
    ),
    "no member with a dot": (partial(make, members={"0": b"", "1": b""}), "a.tar: no member is part of a sample"),
    "a hard link": (
        partial(write_special, name="0.jpg", type=tarfile.LNKTYPE, linkname="0.cls"),
        "a.tar: 0.jpg is a link to 0.cls",
    ),
    "a symbolic link": (
        partial(write_special, name="0.jpg", type=tarfile.SYMTYPE, linkname="/data/0.jpg"),
        "a.tar: 0.jpg is a link to /data/0.jpg",
    ),
    "a pipe": (partial(write_special, name="0.jpg", type=tarfile.FIFOTYPE), "a.tar: 0.jpg is not a regular file"),
    "the rest of a file of another volume": (
        partial(write_special, name="0.jpg", type=b"M"),
        "a.tar: 0.jpg is not a regular file (type b'M')",
    ),
    "a file of no bytes": (lambda folder: _write_bytes(folder, b""), "a.tar: not a whole tar file: empty file"),
    "no tar file": (lambda folder: _write_bytes(folder, b"x" * 3000), "a.tar: not a whole tar file"),
    "two tar files joined by `cat`": (
        lambda folder: change(folder, lambda data: data * 2),
        "a.tar: not a whole tar file: more data follows its end",
    ),
    "a damaged header": (
        lambda folder: change(folder, lambda data: data[:1024] + b"\xff" + data[1025:]),
        "a.tar: not a whole tar file",
    ),
    "a damaged size": (
        lambda folder: change(folder, lambda data: data[:124] + b"zzzzzzzzzzz\0" + data[136:]),
        "a.tar: not a whole tar file",
    ),
    "gzip in a file `.tar`": (lambda folder: change(folder, gzip.compress), "a.tar: not a whole tar file"),
    "half of a gzip file": (
        lambda folder: change(folder, lambda data: gzip.compress(data)[:-30], name="b.tar.gz"),
        "b.tar.gz: damaged or not a .gz file",
    ),
    "a file `.tar.gz` that is not compressed": (
        lambda folder: change(folder, bytes, name="b.tar.gz"),
        "b.tar.gz: damaged or not a .gz file",
    ),
    "zstandard": (lambda folder: _write_bytes(folder, b"", "b.tar.zst"), "b.tar.zst: .zst files cannot be read"),
    **{
        f"cut after {size:,} of 2,560 bytes": (
            lambda folder, size=size: change(folder, lambda data: data[:size], {"0.a": b"x" * 600, "1.a": b"y"}),
            "a.tar: not a whole tar file",
        )
        for size in (100, 512, 800, 1536, 1600, 2048, 2049, 2560)
    },
}


def _write_list(folder: Path, names: list[str]) -> Path:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in names:
            add(archive, name, b"1")
    return folder / "a.tar"


def _write_bytes(folder: Path, data: bytes, name: str = "a.tar") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def refused_cells() -> Iterable[Cell]:
    for case, (writer, message) in REFUSED.items():
        yield Cell(
            group=GROUP,
            case=case,
            library="-",
            ours=lambda folder, writer=writer: read_ours(writer(folder)),
            outcome="error",
            note=message,
        )
    for case, (field, content, message) in UNREADABLE_FIELDS.items():
        yield Cell(
            group=GROUP,
            case=case,
            library="-",
            ours=lambda folder, field=field, content=content: read_ours(
                _make_field(folder, field, content), decode=True
            ),
            outcome="error",
            note=message,
        )


CELLS: tuple[Cell, ...] = (*layout_cells(), *special_cells(), *field_cells(), *refused_cells())
