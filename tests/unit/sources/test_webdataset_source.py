"""Tar shards: which members make a sample, how fields are decoded, and what is wrong with a bad shard."""

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from stagepipe.sources import WebdatasetSource
from tests.support.source_cases import write_tar


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_samples_are_runs_of_members_with_one_key():
    array = io.BytesIO()
    np.save(array, np.arange(3))
    members = {
        ".hidden": b"",
        "readme": b"no field",
        "d.x/0.JPG": b"\xff",
        "d.x/0.cls": b"7\n",
        "d.x/0.seg.json": b'{"a": [1]}',
        "e/0.txt": "é".encode(),
        "e/0.npy": array.getvalue(),
        f"e/{'long' * 60}.bin": b"bin",
    }
    write_tar(Path("a.tar"), members)
    first, second, third = WebdatasetSource("a.tar")
    assert first == {"__key__": "d.x/0", "jpg": b"\xff", "cls": 7, "seg.json": {"a": [1]}}
    assert (second["__key__"], second["txt"], second["npy"].tolist()) == ("e/0", "é", [0, 1, 2])
    assert third == {"__key__": f"e/{'long' * 60}", "bin": b"bin"}
    assert WebdatasetSource("a.tar", decode=False)[0]["cls"] == b"7\n"


def test_a_compressed_shard_and_members_that_are_no_files():
    write_tar(Path("b.tar"), {"0.cls": b"1", "1.cls": b"2"})
    with tarfile.open("b.tar", "a") as archive:
        archive.add(Path.cwd(), "folder.cls", recursive=False)
    Path("b.tgz").write_bytes(gzip.compress(Path("b.tar").read_bytes()))
    assert [sample["cls"] for sample in WebdatasetSource(["b.tar", "b.tgz"])] == [1, 2] * 2


def test_fields_are_chosen_and_missed_by_name():
    write_tar(Path("a.tar"), {"0.jpg": b"", "0.cls": b"1", "1.jpg": b""})
    source = WebdatasetSource("a.tar", columns=["cls"])
    assert source[0] == {"__key__": "0", "cls": 1}
    with pytest.raises(ValueError, match=r"webdataset: a\.tar, byte 1536: sample '1' has no column `cls`; it has jpg"):
        source[1]


def test_bad_shards_are_named():
    write_tar(Path("a.tar"), {"0.cls": b"one", "1.cls": b"2"})
    with pytest.raises(ValueError, match=r"a\.tar, byte 0: 0\.cls: cannot be decoded .*`decode: false`"):
        WebdatasetSource("a.tar")[0]
    Path("b.tar").write_bytes(Path("a.tar").read_bytes()[:1200])
    with pytest.raises(ValueError, match=r"webdataset: b\.tar: not a whole tar file"):
        len(WebdatasetSource("b.tar"))
    Path("c.tar").write_bytes(b"x" * 2000)
    with pytest.raises(ValueError, match=r"webdataset: c\.tar: not a whole tar file"):
        len(WebdatasetSource("c.tar"))


@pytest.mark.parametrize(
    "names, words",
    [
        (
            ["0.a", "1.a", "0.b", "1.b"],
            "sample '0' do not follow each other: 0.b .byte 2048. comes after other samples",
        ),
        (["0.a", "1.a", "readme", "1.b", "0.a"], "sample '0' do not follow each other: 0.a .byte 4096."),
        (["0.a", "./0.b"], "sample '0' do not follow each other: ./0.b"),
        ([f"{number}.a" for number in range(300)] + ["7.b"], "sample '7' do not follow each other: 7.b"),
    ],
)
def test_members_that_do_not_follow_each_other_are_refused(names, words):
    with tarfile.open("a.tar", "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(ValueError, match=f"webdataset: a.tar: the members of {words}"):
        len(WebdatasetSource("a.tar"))


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("1.npy", b"", "EOF: reading magic string"),
        ("1.npy", b"PK\3\4 an archive", "the magic string is not correct"),
        ("1.json", b"[" * 100_000, "RecursionError: "),
        ("1.txt", b"\xff", "UnicodeDecodeError: "),
        ("1.cls", b"cat", "invalid literal for int"),
    ],
)
def test_any_exception_of_a_decoder_names_file_and_member(name, content, words):
    write_tar(Path("a.tar"), {"0.txt": b"good", name: content})
    source = WebdatasetSource("a.tar")
    with pytest.raises(ValueError, match=rf"webdataset: a\.tar, byte 1024: {name}: cannot be decoded \({words}"):
        source[1]
    assert source[0]["txt"] == "good"


def test_a_sparse_member_has_its_holes():
    Path("0.bin").write_bytes(b"begin")
    with Path("0.bin").open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"end")
    subprocess.run(["tar", "--format=gnu", "-cSf", "a.tar", "0.bin"], check=True)
    assert Path("a.tar").stat().st_size < 1 << 20
    assert WebdatasetSource("a.tar")[0]["bin"] == Path("0.bin").read_bytes()


def test_a_field_twice_in_a_sample_is_refused():
    with tarfile.open("a.tar", "w") as archive:
        for name in ("0.cls", "0.CLS"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ValueError, match=r"sample '0' has two members `\.cls`"):
        WebdatasetSource("a.tar", decode=False)[0]


def test_a_shard_that_would_lose_samples_is_refused():
    write_tar(Path("a.tar"), {"0.cls": b"1", "1.cls": b"2"})
    whole = Path("a.tar").read_bytes()
    Path("cut.tar").write_bytes(whole[:1024])
    Path("joined.tar").write_bytes(whole * 2)
    write_tar(Path("names.tar"), {"0": b"1", "1": b"2"})
    with tarfile.open("link.tar", "w") as archive:
        for name, kind in (("0.cls", tarfile.REGTYPE), ("1.cls", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "0.cls"
            archive.addfile(member)
    for name, words in {
        "cut": "not a whole tar file: it has no end-of-archive mark at byte 1024",
        "joined": "not a whole tar file: more data follows its end at byte 2048; do not join",
        "names": "no member is part of a sample; a dot separates",
        "link": "1.cls is a link to 0.cls; write the shard with",
    }.items():
        with pytest.raises(ValueError, match=f"webdataset: {name}.tar: {words}"):
            len(WebdatasetSource(f"{name}.tar"))
