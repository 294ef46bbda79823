"""Files that a user reads later: refused before the run, and never seen half-written."""

import pytest

from stagepipe.core import UsageError, check_output_file, replace_when_written


def test_file_is_replaced_whole(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    with replace_when_written(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def _write_half(path):
    with replace_when_written(path) as unfinished:
        unfinished.write_text("ne")
        raise OSError(28, "full")


def test_error_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = tmp_path / ("n" * 250 + ".json")
    path.write_text("old")
    with pytest.raises(OSError, match="full"):
        _write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_belongs_only_to_its_owner(tmp_path):
    with replace_when_written(tmp_path / "a", mode=0o600):
        pass
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_folder_is_made_and_wrong_places_are_refused(tmp_path):
    check_output_file("--report", tmp_path / "new" / "r.json")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "file").write_text("")
    for path, words in ((tmp_path, "this is a folder"), (tmp_path / "file" / "r.json", "its folder cannot be created")):
        with pytest.raises(UsageError, match=f"--report {path}: {words}"):
            check_output_file("--report", path)
