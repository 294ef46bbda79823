"""Every source finds its files in one way: no entry of a list is lost, and no file is read twice."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from stagepipe.sources import FilesSource, Hdf5Source, JsonlSource, NpySource, WebdatasetSource, ZarrSource
from stagepipe.sources.stored_files import RangeReader, find_stored_files
from tests.support.rights import drops_rights, run_without_rights

needs_rights = pytest.mark.skipif(os.getuid() == 0 and not drops_rights(), reason="root reads every folder")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("1\n")


def names(path: Any) -> list[str]:
    found = [file.name for file in find_stored_files(path, "jsonl")]
    assert [item["path"] for item in FilesSource(path)] == found
    return found


@pytest.mark.parametrize(
    "source, argument",
    [(FilesSource, "glob")]
    + [(source, "path") for source in (JsonlSource, WebdatasetSource, NpySource, Hdf5Source, ZarrSource)],
)
@pytest.mark.parametrize(
    "path, error, message",
    [
        (["a", "typo*"], ValueError, r"no file matches 'typo\*'"),
        ("none", ValueError, "no file matches 'none'"),
        ([], ValueError, "`{}` is an empty list"),
        (["a", 3], TypeError, "entry 1 of `{}` is 3; give a path, a pattern or a list of them"),
        (3, TypeError, "`{}` is 3"),
        (b"a", TypeError, "`{}` is b'a'"),
        ("a-{0..9}", ValueError, "braces have no meaning in a pattern"),
        (Path("s3://b/a"), ValueError, "if it is a URL, give it as a string"),
    ],
)
@pytest.mark.usefixtures("here")
def test_no_source_loses_an_entry(source, argument, path, error, message):
    write("a")
    with pytest.raises(error, match=message.format(argument)):
        source(path)


@pytest.mark.usefixtures("here")
def test_a_name_with_a_bracket_that_exists_is_meant():
    write("b1", "b[1]", "v[2]/x1", "v[2]/x[1]", "v2/x1")
    assert names(["b[1]"]) == ["b[1]"]
    assert names("b[1]*") == ["b1"]
    assert names("v[2]/x[1]") == ["v[2]/x[1]"]
    assert names("v[2]/*") == ["v[2]/x1", "v[2]/x[1]"]
    assert names("v[2]/**") == ["v[2]/x1", "v[2]/x[1]"]
    Path("b[1]").unlink()
    assert names("b[1]") == ["b1"]


def test_a_file_of_several_names_comes_once(here: Path):
    write("a", "sub/b")
    assert names(["a", "./a", Path("sub/../a"), str(here / "a")]) == ["a"]
    (here / "link").symlink_to("sub/deep")
    write("sub/deep/c", "sub/a")
    assert names(["a", "link/../a"]) == ["a", "link/../a"]


def test_each_folder_below_two_stars_is_read_once(here: Path):
    write("d/a/x", "d/b/y", "out/z", "top")
    for name, target in {
        "d/a/up": "..",
        "d/a/upper": "../..",
        "d/a/self": ".",
        "d/a/b": "../b",
        "d/b/a": "../a",
        "d/one": "../out",
        "d/two": str(here / "out"),
    }.items():
        Path(name).symlink_to(target)
    assert names("d/**") == names("d/**/*") == names("d/**/**/*") == ["d/a/x", "d/b/y", "d/one/z"]
    assert names("**/[xyz]") == ["d/a/x", "d/b/y", "out/z"]
    assert names("d/**/a/*") == ["d/a/x", "d/b/a/x"]


def test_a_link_that_leads_nowhere_is_said(here: Path, caplog: pytest.LogCaptureFixture):
    write("a.x")
    (here / "b.x").symlink_to("lost")
    with caplog.at_level(logging.WARNING):
        assert names("*.x") == ["a.x"]
    assert "jsonl: links that lead nowhere are left out of '*.x': b.x" in caplog.text
    with pytest.raises(ValueError, match=r"no file matches 'b\.x': it is a link to 'lost', which does not exist"):
        names("b.x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("open/a", "locked/a", "open/locked"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.jsonl").write_text("1\n")
    for name in ("locked", "open/locked"):
        (tmp_path / name).chmod(0)
    return tmp_path


def find(folder: Path, source: str) -> str:
    script = f"from stagepipe.sources import FilesSource, JsonlSource; print(len({source}))"
    done = run_without_rights([sys.executable, "-c", script], folder)
    return done.stdout + done.stderr


@needs_rights
@pytest.mark.parametrize("source, label", [("JsonlSource", "jsonl"), ("FilesSource", "files")])
def test_unreadable_folders_are_named(folder: Path, source: str, label: str):
    for pattern, count, named in [
        ("**/*.jsonl", 1, "./locked, ./open/locked"),
        ("*/*/*.jsonl", 1, "locked, open/locked"),
        ("open/**/*.jsonl", 1, "open/locked"),
    ]:
        text = find(folder, f"{source}({pattern!r})")
        assert text.startswith(f"{count}\n"), text
        message = f"{label}: the files of folders that cannot be read are left out of {pattern!r}: "
        assert message in text
        assert sorted(text.partition(message)[2].strip().split(", ")) == named.split(", ")
    assert find(folder, f"{source}('open/a/*.jsonl')") == "1\n"


@needs_rights
@pytest.mark.parametrize("source", ["JsonlSource", "FilesSource"])
def test_a_pattern_that_finds_nothing_in_them_is_refused(folder: Path, source: str):
    for pattern in ("locked/a*/*.jsonl", "locked/a/x.jsonl", "locked/*.jsonl"):
        text = find(folder, f"{source}({pattern!r})")
        assert f"no file matches {pattern!r}, and these folders cannot be read: locked" in text


def test_small_ranges_in_a_row_are_read_ahead_and_all_ranges_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = bytes(range(256)) * 1000
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(data)
    files = find_stored_files([str(tmp_path / "a"), str(tmp_path / "b")], "text", None)
    reader, calls = RangeReader(), 0
    pread = os.pread

    def count(*arguments: int) -> bytes:
        nonlocal calls
        calls += 1
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", count)
    for start in range(0, len(data), 100):
        stop = min(start + 100, len(data))
        assert reader.read(files[0], start, stop) == data[start:stop]
    assert calls < 10
    for file, start, nbytes in (
        (0, 0, 9),
        (1, 5, 9),
        (1, 14, 9),
        (0, 14, 9),
        (1, 7, 70_000),
        (1, 70_007, 50),
        (1, 3, 9),
    ):
        assert reader.read(files[file], start, start + nbytes) == data[start : start + nbytes]


def test_a_file_that_has_become_shorter_is_refused_where_it_is_read_ahead(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(bytes(200_000))
    [file] = find_stored_files([str(path)], "text", None)
    reader = RangeReader()
    for start in (0, 100, 200):
        reader.read(file, start, start + 100)
    path.write_bytes(bytes(80_000))
    for start in range(300, 80_000, 100):
        assert reader.read(file, start, start + 100) == bytes(100)
    with pytest.raises(ValueError, match="changed"):
        reader.read(file, 80_000, 80_100)
