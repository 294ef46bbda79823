"""A run on a small machine, with little memory and no writable folder: it works, or the error names what is missing."""

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
from tests.support.paths import ROOT
from tests.support.pipelines import batch, pipeline, shuffle, stage
from tests.support.processes import remove_cgroup

COMMAND = Path(sys.executable).parent / "stagepipe"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make mounts and control groups")
pytestmark = pytest.mark.timeout(60)
MEMORY = 16 << 20

CONFIG = """
name: c
source: {uses: stagepipe.sources.numbers, with: {count: 120}}
memory: 48MiB
stages:
  - {name: make, uses: tests.support.stages.megabyte, workers: 2}
  - {name: same, uses: tests.support.stages.same}
"""
READ_ONLY = """
mount --make-rprivate /
mount -t tmpfs -o size=64m tmpfs /dev/shm
for folder in $(awk '$2 !~ "^/(proc|sys|dev)" {print $2}' /proc/mounts | sort -ru); do
    mount -o remount,ro,bind "$folder" 2>/dev/null || mount -o remount,ro "$folder"
done
touch /x 2>/dev/null && exit 77
"""


def run_after(tmp_path: Path, mount_script: str) -> subprocess.CompletedProcess[str]:
    """`stagepipe run` in a mount namespace of its own, after `mount_script`; skips where that cannot be made."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    script = f"{mount_script}\ntimeout 50 {COMMAND} run --quiet {tmp_path / 'c.yaml'}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XDG_RUNTIME_DIR", None)
    command = ["unshare", "-m", "bash", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=58, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this machine does not allow mounts")
    return done


@needs_root
def test_a_run_in_a_read_only_root_with_64_mb_of_dev_shm(tmp_path):
    """144 MB pass through. The control channel is bound in /dev/shm for a moment, and nothing stays there."""
    done = run_after(tmp_path, READ_ONLY + "trap 'ls -A /dev/shm' EXIT")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_root
def test_without_a_writable_folder_the_error_names_the_fix(tmp_path):
    done = run_after(tmp_path, READ_ONLY + "mount -o remount,ro /dev/shm")
    assert done.returncode == 2
    assert done.stderr.startswith("the control channel's socket cannot be bound: no temporary folder is writable")
    assert "set TMPDIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_long_path_of_the_temporary_folder_works(tmp_path, monkeypatch):
    """unix(7) limits the path of a socket to 107 bytes."""
    deep = tmp_path / ("x" * 150)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with Pipeline(pipeline(stage("double"), source=3)) as running:
        assert list(running) == [0, 2, 4]
    assert list(deep.iterdir()) == []


# ---------------------------------------------------------------- the kernel's out-of-memory killer


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with 500 MB of memory, below this process's own."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    if own is None or os.getuid() != 0:
        pytest.skip("needs root and a memory control group of version 1")
    group = Path("/sys/fs/cgroup/memory") / own.lstrip("/") / f"stagepipe-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(500 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    remove_cgroup(group)


IN_GROUP = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from stagepipe import Pipeline
from tests.support.pipelines import pipeline, stage
hungry = stage("tests.support.memory_hungry_stages.eats_all_memory", name="eats", on_error="skip", retries=1)
with Pipeline(pipeline(hungry, source=10)) as running:
    print(running.make_plan().memory_bytes, *running)
    print(*(f"{letter.item}: {letter.error}" for letter in running.dead_letters))
"""


def test_an_item_that_exhausts_memory_goes_to_the_dead_letters(memory_group):
    command = [sys.executable, "-c", IN_GROUP, str(memory_group)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    items, letters = done.stdout.splitlines()
    assert items.split() == [str((500 << 20) // 4), *"01234", *"6789"]
    assert letters.startswith("5: ")
    assert "it killed 2 workers; the last one was killed by the kernel because memory ran out" in letters


# ---------------------------------------------------------------- shared memory that is too small

MEGABYTE = stage("megabyte")
KEEPS = "tests.support.memory_hungry_stages.keeps_every_input"
PARTS = "tests.support.memory_hungry_stages.a_thousand_parts"
LOANS = "tests.support.memory_hungry_stages.a_thousand_loans"


@pytest.mark.parametrize(
    "stages, holder",
    [
        ([MEGABYTE, batch(40)], "cannot allocate 50331648 bytes"),
        ([stage("filled", with_={"nbytes": 20 << 20})], "cannot allocate 20971520 bytes"),
        ([stage(LOANS)], "a_thousand_loans/0 holds 16 MB"),
    ],
    ids=["a batch", "one item", "a thousand parts at once"],
)
def test_an_item_that_does_not_fit_ends_the_run_with_the_holder_and_the_fix(stages, holder):
    with pytest.raises(RunError) as caught, Pipeline(pipeline(*stages, source=80, memory=MEMORY)) as running:
        list(map(id, running))
    assert holder in caught.value.message
    assert "raise `memory` (now 17 MB)" in caught.value.message


def test_a_stage_that_keeps_its_inputs_gets_copies_and_the_run_completes():
    with Pipeline(pipeline(MEGABYTE, stage(KEEPS), source=40, memory=MEMORY)) as running:
        assert list(running) == list(range(40))


def test_a_shuffled_block_that_is_larger_than_memory_is_kept_in_copies():
    with Pipeline(pipeline(MEGABYTE, shuffle(40), source=80, memory=MEMORY)) as running:
        assert sorted(item["id"] for item in running) == list(range(80))


def test_parts_that_pile_up_before_a_slow_caller_arrive_or_the_error_says_where_they_are():
    """The pipe holds 256 of them, 25 MB. If they do not fit the run seeks to the last delivered item, if that helps."""
    found, message = [], ""
    try:
        with Pipeline(pipeline(stage(PARTS), source=1, memory=MEMORY)) as running:
            for item in running:
                found.append(item["id"])
                time.sleep(0.001)
    except RunError as error:
        message = error.message
    assert found == list(range(len(found)))
    assert len(found) == 1000 or "of it is sent but not read yet" in message, (len(found), message)


def test_a_window_that_does_not_fit_in_memory_is_warned_about_once(caplog):
    with caplog.at_level(logging.WARNING, "stagepipe"):
        config = pipeline(MEGABYTE, stage("nap"), source=150, memory=8 << 20, window=16)
        with Pipeline(config) as running:
            assert sum(1 for _ in running) == 150
    (message,) = [record.getMessage() for record in caplog.records]
    assert "of a window of 16 fit in `memory` (8.4 MB)" in message
    assert re.search(r"set `memory=\d+MiB` or more", message)
