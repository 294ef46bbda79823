"""FilesSource yields the same items in the same order, with shuffle in that of its seed. NumbersSource counts."""

from pathlib import Path
from typing import Any

import pytest

from stagepipe.core import build_target
from stagepipe.sources import FilesSource


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b/2.txt", "a/1.txt", "a/deep/3.txt", "a/4.md", "top.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "a" / "folder.txt").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_pattern_is_relative_to_the_current_directory_and_sorted():
    source = FilesSource("**/*.txt")
    assert [item["path"] for item in source] == ["a/1.txt", "a/deep/3.txt", "b/2.txt", "top.txt"]
    assert len(source) == 4
    assert source[3] == {"path": "top.txt"}


def test_an_absolute_pattern_gives_absolute_paths(folder: Path):
    assert [item["path"] for item in FilesSource(str(folder / "a/*.md"))] == [str(folder / "a/4.md")]


def test_a_tilde_is_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(folder))
    assert len(FilesSource("~/*.txt")) == 1


@pytest.mark.usefixtures("folder")
def test_a_file_that_two_patterns_match_comes_once():
    assert [item["path"] for item in FilesSource(["b/*", "a/*.md", "b/2.txt"])] == ["a/4.md", "b/2.txt"]


@pytest.mark.usefixtures("folder")
def test_bytes_and_labels_are_added_on_request():
    item = FilesSource("a/deep/*", read=True, labels="folder")[0]
    assert item == {"path": "a/deep/3.txt", "data": b"a/deep/3.txt", "label": "deep"}


def test_a_file_in_the_current_directory_has_its_name_as_label(folder: Path):
    assert FilesSource("top.txt", labels="folder")[0]["label"] == folder.name


@pytest.mark.usefixtures("folder")
def test_the_order_of_an_epoch_depends_on_its_seed():
    def order(epoch: int, seed: int) -> list[str]:
        source = FilesSource("**/*.txt", shuffle=True)
        source.begin(epoch, seed)
        return [item["path"] for item in source]

    orders = {tuple(order(epoch, seed)) for epoch in range(4) for seed in range(4)}
    assert order(2, 3) == order(2, 3)
    assert len(orders) > 4
    assert {tuple(sorted(paths)) for paths in orders} == {("a/1.txt", "a/deep/3.txt", "b/2.txt", "top.txt")}


@pytest.mark.usefixtures("folder")
def test_without_shuffle_an_epoch_changes_nothing():
    source = FilesSource("**/*.txt")
    source.begin(1, 2)
    assert source[0]["path"] == "a/1.txt"


def test_no_match_says_where_it_looked(folder: Path):
    with pytest.raises(ValueError, match="no file matches 'images/") as caught:
        FilesSource("images/**/*.jpg")
    assert str(folder) in str(caught.value)
    assert "absolute path" in str(caught.value)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("labels", ["folders", None])
def test_an_unknown_labels_is_refused(labels: Any):
    with pytest.raises(ValueError, match="`none` or `folder`"):
        FilesSource("*.txt", labels=labels)


@pytest.mark.usefixtures("folder")
def test_it_is_built_by_its_alias():
    assert len(build_target("stagepipe.sources.files", {"glob": "*.txt"})) == 1


def test_numbers_count_from_zero():
    source = build_target("stagepipe.sources.numbers", {"count": 3})
    assert list(source) == [0, 1, 2]
    assert (len(source), source[2]) == (3, 2)


def test_an_index_beyond_the_last_number_raises():
    with pytest.raises(IndexError):
        build_target("stagepipe.sources.numbers", {"count": 3})[3]


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count is -1"):
        build_target("stagepipe.sources.numbers", {"count": -1})
