"""`cache`: a second run and a second epoch compute nothing, and yield the same; what has changed is computed again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stagepipe import ConfigError, Pipeline, RunError, UsageError, from_source
from stagepipe.engine import identity
from tests.support.pipelines import outputs, plain, stage

COMMAND = str(Path(sys.executable).parent / "stagepipe")
OPS = "tests.support.cached_stages"


@pytest.fixture(autouse=True)
def _count_file(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "count"))


def calls() -> int:
    """Return how often the stages were called since the last time."""
    path = Path(os.environ["COUNT_FILE"])
    size = path.stat().st_size if path.exists() else 0
    path.unlink(missing_ok=True)
    return size


def cached(name: str, tmp_path: Path, **keys: Any) -> dict[str, Any]:
    settings = keys.pop("cache", {})
    return stage(f"{OPS}.{name}", name=name.lower(), cache={"path": str(tmp_path / "kept"), **settings}, **keys)


def numbers(*stages: dict[str, Any], count: int = 5, **keys: Any) -> dict[str, Any]:
    return {"source": {"uses": "stagepipe.sources.numbers", "with": {"count": count}}, "stages": [*stages], **keys}


def run(config: dict[str, Any], epochs: int = 1, *, inline: bool = True, **keys: Any) -> tuple[list[Any], int]:
    """Return the items of all epochs, and the number of calls."""
    with Pipeline(config, inline=inline, **keys) as pipeline:
        items = [plain(item) for _ in range(epochs) for item in pipeline]
    return items, calls()


def test_a_second_run_calls_nothing_and_yields_the_same(tmp_path):
    config = numbers(cached("make", tmp_path, workers=2), stage(f"{OPS}.draw", name="draw"))
    first, first_calls = run(config, inline=False)
    assert (len(first), first_calls) == (4, 5)
    assert run(config, inline=False) == (first, 0)
    assert run(config) == (first, 0)
    assert run(config, cache=False) == (first, 5)


def test_cached_values_equal_computed_values(tmp_path):
    config = numbers(cached("make", tmp_path), count=1)
    with Pipeline(config, inline=True) as pipeline:
        [computed] = pipeline
    with Pipeline(config, inline=True) as pipeline:
        [read] = pipeline
    assert calls() == 1
    assert read["text"] == computed["text"]
    for field in ("big", "small"):
        assert read[field].dtype == computed[field].dtype
        assert read[field].tobytes() == computed[field].tobytes()
        assert read[field].flags.f_contiguous == computed[field].flags.f_contiguous
    read["big"][:] = 0  # a copy of the page, not the file
    assert run(config, inline=True)[0] == [plain(computed)]


def test_each_epoch_draws_new_values_unless_it_is_deterministic(tmp_path):
    random_config = numbers(cached("make", tmp_path))
    items, count = run(random_config, epochs=2)
    assert count == 10
    assert items[:4] != items[4:]
    assert run(random_config, epochs=2) == (items, 0)
    plain_config = numbers(cached("make_plain", tmp_path, cache={"deterministic": True}))
    items, count = run(plain_config, epochs=3, inline=False)
    assert (items[:5], count) == (items[5:10], 5)
    assert run({**plain_config, "seed": 4}) == (items[:5], 0)


@pytest.mark.parametrize("inline", [True, False])
def test_parts_are_kept_together(tmp_path, inline):
    config = numbers(cached("split", tmp_path), count=4)
    first, count = run(config, inline=inline)
    assert (len(first), count) == (4, 4)
    assert run(config, inline=inline) == (first, 0)


def test_changed_settings_are_computed_again(tmp_path):
    config = numbers(cached("Times", tmp_path, **{"with": {"factor": 2}}))
    assert run(config) == ([0, 2, 4, 6, 8], 5)
    assert run(config, overrides=["stages.times.with.factor=3"]) == ([0, 3, 6, 9, 12], 5)
    assert run(config, overrides=["seed=1"])[1] == 5
    assert run(config, overrides=["stages.times.workers=2", "order=any"])[1] == 0
    assert run(config, limit=2) == ([0, 2], 0)


def test_changed_code_is_computed_again(tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    ops, helper = tmp_path / "cache_ops.py", tmp_path / "cache_helper.py"
    ops.write_text("from cache_helper import add\n\ndef f(x):\n    return add(x)\n")
    helper.write_text("def add(x):\n    return x + 1\n")
    config.write_text(
        "source: {uses: stagepipe.sources.numbers, with: {count: 3}}\n"
        "stages: [{name: f, uses: cache_ops.f, cache: kept/}]\n"
    )
    monkeypatch.chdir(tmp_path)
    for text, expected in (("x + 1", [1, 2, 3]), ("x + 10", [10, 11, 12]), ("x + 1", [1, 2, 3])):
        helper.write_text(f"def add(x):\n    return {text}\n")
        with Pipeline(config, ["start=spawn", "stages.f.fuse=true"]) as pipeline:
            assert list(pipeline) == expected
    assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_changed_file_is_computed_again(tmp_path, shuffle):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    source = {
        "uses": "stagepipe.sources.files",
        "with": {"glob": str(tmp_path / "*.txt"), "shuffle": shuffle},
    }
    config = {"source": source, "stages": [cached("read", tmp_path, cache={"deterministic": True})]}
    items, count = run(config, epochs=3)
    assert sorted(item["text"] for item in items) == sorted("abc" * 3)
    assert count == 3
    (tmp_path / "b.txt").write_text("B")
    os.utime(tmp_path / "b.txt", (1, 1))
    items, count = run(config)
    assert (sorted(item["text"] for item in items), count) == (["B", "a", "c"], 1)
    (tmp_path / "aa.txt").write_text("new")
    items, count = run(config)
    assert (sorted(item["text"] for item in items), count) == (["B", "a", "c", "new"], 1)


def test_records_are_known_by_file_and_index(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("a\nb\nc\n")
    source = {"uses": "stagepipe.sources.text", "with": {"path": str(path), "shuffle": True}}
    config = {"source": source, "stages": [cached("make_plain", tmp_path, cache={"deterministic": True})]}
    earlier = Pipeline(config, inline=True)
    items = [plain(item) for _ in range(3) for item in earlier]
    assert calls() == 3
    assert sorted(map(str, items[:3])) == sorted(map(str, items[3:6])) == sorted(map(str, items[6:]))
    path.write_text("a\nb\nX\n")
    os.utime(path, (1, 1))
    items, count = run(config)
    assert count == 3
    assert "X" in str(items)
    earlier.close()


def test_a_sample_of_a_dataset_is_known_by_its_index(tmp_path):
    source = {"uses": "stagepipe.sources.dataset", "with": {"dataset": [10, 20, 30], "shuffle": True}}
    kept = {"path": str(tmp_path / "kept"), "key": "v1", "deterministic": True}
    config = {"source": {**source, "cache": kept}}
    items, _ = run(config, epochs=3)
    assert [sorted(items[n : n + 3]) for n in (0, 3, 6)] == [[10, 20, 30]] * 3
    entries = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert len(entries) == 3


def test_errors_are_not_kept(tmp_path):
    config = numbers(cached("fail_at_one", tmp_path, on_error="skip", retries=1))
    assert run(config) == ([0, 2, 3, 4], 6)
    assert run(config) == ([0, 2, 3, 4], 2)


def test_items_that_pass_by_are_not_cached(tmp_path):
    config = numbers(cached("Times", tmp_path, when=f"{OPS}.is_even", **{"with": {"factor": 2}}))
    assert run(config) == ([0, 1, 4, 3, 8], 3)
    assert run(config) == ([0, 1, 4, 3, 8], 0)


def test_ranks_share_the_cache(tmp_path):
    config = numbers(cached("make", tmp_path))
    items, _ = run(config)
    shares = [run(config, rank=rank, world_size=2, inline=True) for rank in range(2)]
    assert [count for _, count in shares] == [0, 0]
    assert [len(share) for share, _ in shares] == [2, 2]
    assert [item for item in items if item in [*shares[0][0], *shares[1][0]]] == items


def test_damaged_entries_are_computed_again(tmp_path):
    config = numbers(cached("make", tmp_path))
    first, _ = run(config, inline=True)
    for number, path in enumerate(sorted(path for path in (tmp_path / "kept").rglob("*") if path.is_file())):
        data = path.read_bytes()
        path.write_bytes([b"", data[:-1], data[: len(data) // 2], data[:-40] + bytes(40), data + b"x"][number])
    assert run(config, inline=True) == (first, 5)
    assert run(config, inline=True) == (first, 0)


def test_an_object_is_refused_with_its_field(tmp_path):
    config = numbers(cached("make_object", tmp_path, on_error="skip"))
    with (
        pytest.raises(RunError, match=r"field `deep\[0\]\.thing` is of type types\.SimpleNamespace"),
        Pipeline(config) as pipeline,
    ):
        list(pipeline)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "kept").write_text("a file")
    config = numbers(cached("make", tmp_path))
    assert run(config, inline=True)[1] == 5
    assert sum("cannot keep its outputs" in record.message for record in caplog.records) == 1


def test_a_killed_run_leaves_whole_entries(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "source: {uses: stagepipe.sources.numbers, with: {count: 100000}}\n"
        f"stages: [{{name: make, uses: {OPS}.make, cache: {tmp_path / 'kept'}}}]\n"
    )
    command = [COMMAND, "run", str(config), "--quiet"]
    process = subprocess.Popen(command, start_new_session=True)
    deadline_s = time.monotonic() + 30
    while calls_so_far() < 100 and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    calls()
    config_of_run = [str(config)]
    entries = [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and path.parent.name != "unfinished"]
    count = len(entries)
    assert count >= 50
    with Pipeline(*config_of_run, limit=count, inline=True) as pipeline:
        kept = [plain(item) for item in pipeline]
    assert calls() <= 1
    with Pipeline(*config_of_run, limit=count, inline=True, cache=False) as pipeline:
        assert [plain(item) for item in pipeline] == kept


def calls_so_far() -> int:
    path = Path(os.environ["COUNT_FILE"])
    return path.stat().st_size if path.exists() else 0


def test_the_builder_takes_a_cache(tmp_path):
    from tests.support import cached_stages

    def build() -> Any:
        return from_source([1, 2]).map(cached_stages.make_plain, cache=str(tmp_path / "kept"))

    with Pipeline(build(), inline=True) as pipeline:
        assert [item["item"] for item in pipeline] == [1, 2]
    with Pipeline(build(), inline=True) as pipeline:
        assert [item["item"] for item in pipeline] == [1, 2]
    assert calls() == 2


def test_the_values_of_a_closure_count(tmp_path):
    def run_with(held: Any) -> list[Any]:
        kept = str(tmp_path / "kept")
        return outputs(from_source([1, 2]).map(lambda item: item * held, cache=kept), inline=True)

    assert (run_with(2), run_with(3), run_with(2)) == ([2, 4], [3, 6], [2, 4])


def test_an_object_without_a_fingerprint_is_refused(tmp_path):
    with (tmp_path / "open").open("w") as file:
        config = from_source([1]).map(lambda item: (item, file.name)[0], cache=str(tmp_path / "kept"))
        with pytest.raises(UsageError, match=r"cannot tell whether this has changed"), Pipeline(config, inline=True):
            pass


def test_code_of_too_many_files_needs_a_key(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "MAX_FILES", 0)
    pattern = r"stage make: its `cache` .* more than 0 files .* `stages.make.cache=\{path: .*, key: ...\}`"
    with pytest.raises(UsageError, match=pattern), Pipeline(numbers(cached("make", tmp_path)), inline=True):
        pass
    assert run(numbers(cached("make", tmp_path, cache={"key": "v1"})))[1] == 5


def test_no_cache_on_the_command_line(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "source: {uses: stagepipe.sources.numbers, with: {count: 2}}\n"
        f"stages: [{{name: make, uses: {OPS}.make, cache: {tmp_path / 'kept'}}}]\n"
    )
    command = [COMMAND, "run", str(config), "--quiet", "--no-cache", "--inline"]
    subprocess.run(command, check=True)
    assert (calls(), (tmp_path / "kept").exists()) == (2, False)


@pytest.mark.parametrize(
    "stages, message",
    [
        (
            [{"name": "b", "uses": "stagepipe.stages.Batch", "with": {"size": 2}, "cache": "kept"}],
            "cannot have `cache`",
        ),
        ([{"name": "f", "uses": f"{OPS}.make", "batch": {"size": 2}, "cache": "kept"}], "other items of a call"),
        ([{"name": "f", "uses": f"{OPS}.make", "stateful": True, "cache": "kept"}], "a stateful stage"),
        (
            [
                {"name": "b", "uses": "stagepipe.stages.Batch", "with": {"size": 2}},
                {"name": "f", "uses": f"{OPS}.make", "cache": "kept"},
            ],
            "a stage after `b` cannot have `cache`",
        ),
        (
            [
                {"name": "s", "uses": f"{OPS}.make", "stateful": True},
                {"name": "f", "uses": f"{OPS}.make", "cache": "kept"},
            ],
            "after the stateful `s`",
        ),
        ([{"name": "f", "uses": f"{OPS}.make", "cache": {"path": "kept", "determinstic": True}}], "deterministic"),
        ([{"name": "f", "uses": f"{OPS}.make", "cache": {"key": "a"}}], "is missing"),
        ([{"name": "f", "uses": f"{OPS}.make", "cache": 3}], "a folder"),
    ],
)
def test_refused(stages, message):
    with pytest.raises(ConfigError, match=message):
        Pipeline(numbers(*stages), inline=True)


def test_a_source_without_identities_needs_a_key(tmp_path):
    source = {"uses": "itertools.repeat", "with": {"object": 1, "times": 3}}
    config = {"source": source, "stages": [cached("make_plain", tmp_path)]}
    with pytest.raises(ConfigError, match=r"the source `itertools.repeat` cannot have `cache`"):
        Pipeline(config, inline=True)
    keyed = {**config, "stages": [cached("make_plain", tmp_path, cache={"key": "v1"})]}
    assert run(keyed, inline=True)[1] == 3
    assert run(keyed, inline=True)[1] == 0
    other = {**config, "stages": [cached("make_plain", tmp_path, cache={"key": "v2"})]}
    assert run(other, inline=True)[1] == 3
    frozen = {**config, "stages": [cached("make_plain", tmp_path, cache={"key": "v1", "deterministic": True})]}
    with pytest.raises(ConfigError, match="`deterministic` cannot be set"):
        Pipeline(frozen, inline=True)
