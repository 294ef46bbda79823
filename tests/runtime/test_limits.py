"""A run in a small machine: little memory, no place to write. It works, or says what is short."""

import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagepipe import Pipeline, RunError
from tests.zoo.pipelines import batch, pipeline, shuffle, stage

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "stagepipe"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts and control groups are root's to make")
pytestmark = pytest.mark.timeout(60)
MEMORY = 16 << 20

CONFIG = """
name: c
source: {uses: stagepipe.sources.numbers, with: {count: 120}}
memory: 48MiB
stages:
  - {name: make, uses: tests.zoo.stages.megabyte, workers: 2}
  - {name: same, uses: tests.zoo.stages.same}
"""
READ_ONLY = """
mount --make-rprivate /
mount -t tmpfs -o size=64m tmpfs /dev/shm
for place in $(awk '$2 !~ "^/(proc|sys|dev)" {print $2}' /proc/mounts | sort -ru); do
    mount -o remount,ro,bind "$place" 2>/dev/null || mount -o remount,ro "$place"
done
touch /x 2>/dev/null && exit 77
"""


def run_in(tmp_path: Path, setting: str) -> subprocess.CompletedProcess[str]:
    """`stagepipe run` among mounts of its own; skips where they cannot be made."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    script = f"{setting}\ntimeout 50 {COMMAND} run --quiet {tmp_path / 'c.yaml'}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XDG_RUNTIME_DIR", None)
    command = ["unshare", "-m", "bash", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=58, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    return done


@needs_root
def test_a_run_in_a_read_only_root_with_64_mb_of_dev_shm(tmp_path):
    """144 MB go through; /dev/shm is where the control channel is bound for a moment, and nothing stays there."""
    done = run_in(tmp_path, READ_ONLY + "trap 'ls -A /dev/shm' EXIT")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_root
def test_where_nothing_can_be_written_the_mend_is_named(tmp_path):
    done = run_in(tmp_path, READ_ONLY + "mount -o remount,ro /dev/shm")
    assert done.returncode == 2
    assert done.stderr.startswith("no folder can be written, and the run needs one for a moment")
    assert "set TMPDIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_long_path_of_the_temporary_folder_does_not_matter(tmp_path, monkeypatch):
    """unix(7) allows a socket's path 107 bytes."""
    deep = tmp_path / ("x" * 150)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with Pipeline(pipeline(stage("double"), source=3)) as running:
        assert list(running) == [0, 2, 4]
    assert list(deep.iterdir()) == []


# ---------------------------------------------------------------- memory that really runs out


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of 500 MB, below the one of this process."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    if own is None or os.getuid() != 0:
        pytest.skip("no control group of version 1 for memory that could be divided")
    group = Path("/sys/fs/cgroup/memory") / own.lstrip("/") / f"stagepipe-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(500 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


IN_GROUP = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from stagepipe import Pipeline
from tests.zoo.pipelines import pipeline, stage
hungry = stage("tests.zoo.hungry.eats_all_memory", name="eats", on_error="skip", retries=1)
with Pipeline(pipeline(hungry, source=10)) as running:
    print(running.plan.memory_bytes, *running)
    print(*(f"{letter.item}: {letter.error}" for letter in running.dead_letters))
"""


def test_an_item_that_the_kernel_kills_for_want_of_memory_goes_to_the_dead_letters(memory_group):
    command = [sys.executable, "-c", IN_GROUP, str(memory_group)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    items, letters = done.stdout.splitlines()
    assert items.split() == [str((500 << 20) // 4), *"01234", *"6789"]
    assert letters.startswith("5: ")
    assert "it has killed 2 workers, the last of which was killed by the kernel because memory ran out" in letters
    assert " of memory when last looked at" in letters


# ---------------------------------------------------------------- shared memory that is too small

MEGABYTE = stage("megabyte")
KEEPS = "tests.zoo.hungry.keeps_every_input"
PARTS = "tests.zoo.hungry.a_thousand_parts"
LOANS = "tests.zoo.hungry.a_thousand_loans"


@pytest.mark.parametrize(
    "stages, holder",
    [
        ([MEGABYTE, batch(40)], "50331648 bytes more do not fit"),
        ([stage("filled", with_={"nbytes": 20 << 20})], "20971520 bytes more do not fit"),
        ([stage(LOANS)], "a_thousand_loans/0 holds 16 MB"),
    ],
    ids=["a batch", "one item", "a thousand parts at once"],
)
def test_what_does_not_fit_ends_the_run_with_who_holds_how_much_and_the_mend(stages, holder):
    with pytest.raises(RunError) as caught, Pipeline(pipeline(*stages, source=80, memory=MEMORY)) as running:
        list(map(id, running))
    assert holder in caught.value.message
    assert "raise `memory` (now 17 MB)" in caught.value.message


def test_a_stage_that_keeps_its_inputs_gets_copies_and_leaves_room():
    with Pipeline(pipeline(MEGABYTE, stage(KEEPS), source=40, memory=MEMORY)) as running:
        assert list(running) == list(range(40))


def test_a_shuffled_block_that_is_larger_than_memory_is_kept_in_copies():
    with Pipeline(pipeline(MEGABYTE, shuffle(40), source=80, memory=MEMORY)) as running:
        assert sorted(item["id"] for item in running) == list(range(80))


def test_parts_that_pile_up_before_a_slow_caller_come_through_or_are_said_to_lie_there():
    """The pipe holds 256 of them, 25 MB: when they do not fit, it goes on behind what was delivered, while there is."""
    found, said = [], ""
    try:
        with Pipeline(pipeline(stage(PARTS), source=1, memory=MEMORY)) as running:
            for item in running:
                found.append(item["id"])
                time.sleep(0.001)
    except RunError as error:
        said = error.message
    assert found == list(range(len(found)))
    assert len(found) == 1000 or "of it are sent and not read yet" in said, (len(found), said)


def test_a_window_that_memory_does_not_hold_is_told_once_with_what_would(caplog):
    with caplog.at_level(logging.WARNING, "stagepipe"):
        config = pipeline(MEGABYTE, stage("nap"), source=150, memory=8 << 20, window=16)
        with Pipeline(config) as running:
            assert sum(1 for _ in running) == 150
    (said,) = [record.getMessage() for record in caplog.records]
    assert "fit `memory` (8.4 MB), and not the window of 16" in said
    assert re.search(r"with `memory: \d+MiB` or more", said)
