"""A pattern that leaves out folders which cannot be read says so; one that then matches nothing is refused."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.rights import drops_rights, run_without_rights

pytestmark = pytest.mark.skipif(os.getuid() == 0 and not drops_rights(), reason="root reads every folder")


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


@pytest.mark.parametrize("source", ["JsonlSource", "FilesSource"])
def test_a_pattern_that_finds_nothing_in_them_is_refused(folder: Path, source: str):
    for pattern in ("locked/a*/*.jsonl", "locked/a/x.jsonl", "locked/*.jsonl"):
        text = find(folder, f"{source}({pattern!r})")
        assert f"no file matches {pattern!r}, and these folders cannot be read: locked" in text
