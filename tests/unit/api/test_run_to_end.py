"""The file of `run --resume` is read and written before the first item, or refused with what to do."""

import json
from pathlib import Path

import pytest

from stagepipe import Pipeline, RunError, UsageError
from stagepipe.api import StateFile, run_to_sink

ITEMS = 5


def make_pipeline(sink=None):
    config = {"name": "p", "source": {"uses": range(ITEMS)}, "stages": [{"name": "neg", "uses": "operator.neg"}]}
    return Pipeline(config | ({} if sink is None else {"sink": sink}), inline=True)


def run(path: Path, sink=None) -> bool:
    """Run, or resume, with the state file at `path`; return whether anything was left to run."""
    with make_pipeline(sink) as pipeline:
        state_file = StateFile(path)
        is_unfinished = state_file.load(pipeline)
        if is_unfinished:
            run_to_sink(pipeline, lambda _: None, state_file)
        return is_unfinished


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "it does not hold the state of a run .*delete it to start over"),
        (b'{"version": 1, "con', "truncated"),
        (b"\xff\x00", "does not hold the state"),
        (b"[" * 100_000, "does not hold the state"),
        (b"[1, 2]", "not the state of a stagepipe pipeline .found int"),
        (b"null", "not the state of a stagepipe pipeline .found NoneType"),
        (b'{"version": 1, "config": 3}', "`config` is of type int"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, content, words):
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        StateFile(path).load(make_pipeline())
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    with pytest.raises(UsageError, match=r"cannot be written there \(No such file or directory"):
        StateFile(tmp_path / "missing" / "state.json").load(make_pipeline())
    with pytest.raises(UsageError, match="/dev/zero: this is not a file"):
        StateFile(Path("/dev/zero")).load(make_pipeline())


def test_a_state_that_cannot_be_saved_any_more_ends_the_run(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    state_file = StateFile(folder / "state.json")
    assert state_file.load(make_pipeline())
    folder.rmdir()
    with pytest.raises(RunError, match=r"state\.json: No such file or directory; free disk space"):
        state_file.save(make_pipeline())


def test_nothing_of_the_users_is_deleted(tmp_path):
    others = [tmp_path / name for name in ("state.json.tmp", "state.json.tmp1", "state.json.tmp-of-mine")]
    for other in others:
        other.touch()
    assert run(tmp_path / "state.json")
    assert not run(tmp_path / "state.json")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "state.json", *others])


def test_the_state_is_on_disk_before_the_first_item(tmp_path):
    path, seen = tmp_path / "state.json", []

    class Sink:
        def __call__(self, item):
            seen.append(json.loads(json.loads(path.read_text())["rank0"])["items"])

    assert run(path, {"uses": Sink})
    assert seen == [0] * ITEMS


def test_a_sink_that_was_killed_in_its_first_item_gets_it_again(tmp_path):
    out = tmp_path / "out"
    sink = {"uses": "stagepipe.sinks.npz", "with": {"path": str(out)}}
    path = tmp_path / "state.json"
    StateFile(path).save(make_pipeline(sink))
    out.mkdir()
    (out / "000000.tmp1").touch()
    assert run(path, sink)
    assert sorted(file.name for file in out.iterdir()) == [f"{number:06}.npz" for number in range(ITEMS)]


def test_a_new_run_still_keeps_out_of_a_folder_with_files(tmp_path):
    (tmp_path / "000000.npz").touch()
    with pytest.raises(RunError, match="is not empty"):
        run(tmp_path / "state.json", {"uses": "stagepipe.sinks.npz", "with": {"path": str(tmp_path)}})
    assert not (tmp_path / "state.json").exists()
