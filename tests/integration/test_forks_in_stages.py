"""A child that user code forks ends where it leaves that code: the result of the process that forked it counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(170)
RESULTS = {
    "order point": "[[0, 1], [2, 3], [4, 5]]",
    "os._exit": "[0, 1, 2, 10, 4, 5]",
}
QUIET = ("sys.exit", "os._exit", "multiprocessing")
NAMES = (
    *("returns", "raises", "raises, skipped", "raises, tried again", "gives None", "skips", "fused", "cached"),
    *("yields", "forks before it yields", "batch", "batch, skipped", "condition", "filter", "constructor"),
    *("order point", "dataset", "stream", "stream that ends", "begins epochs", *QUIET),
)


@pytest.fixture(scope="module", params=["workers", "inline"])
def written(request, tmp_path_factory):
    """What all cases write to stdout and to stderr: their results, and the warnings. A child may still write then."""
    command = [sys.executable, "-m", "tests.support.forking_stages", request.param]
    environment = {**os.environ, "FORK_CACHE": str(tmp_path_factory.mktemp("cache"))}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=True)
    return run.stdout, run.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_result_of_the_process_that_forked_counts(written, name):
    lines = written[0].splitlines()
    results = [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]
    assert results == [RESULTS.get(name, "[0, 1, 2, 3, 4, 5]")]


def test_each_child_that_comes_back_is_named(written):
    lines = written[1].splitlines()
    warnings = [line for line in lines if "its code forked process" in line]
    # Most of them: a run that ends before its child has written kills it.
    assert len(warnings) > (len(NAMES) - len(QUIET)) / 2
    assert all("and was ended" in line and "os._exit(0)" in line for line in warnings)
    for place in ("stage returns, item 3: ", "source, item 3: "):
        assert any(place in line for line in warnings), place
    assert any("left it by raising ValueError" in line for line in warnings)
    assert any("ValueError: raised in the child" in line for line in lines)


@pytest.mark.parametrize("mode", [[], ["--inline"]])
def test_a_child_of_a_sink_writes_no_item_and_ends(tmp_path, mode):
    (tmp_path / "p.yaml").write_text(
        "source: {uses: stagepipe.sources.numbers, with: {count: 6}}\n"
        f"sink: {{uses: tests.support.forking_stages.Sink, with: {{path: {tmp_path / 'out'}}}}}\n"
    )
    command = [Path(sys.executable).parent / "stagepipe", "run", "p.yaml", "--dead-letters", "dead.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*command, *mode], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment, timeout=80
    )
    assert run.returncode == 0, run.stderr
    assert sorted(map(int, (tmp_path / "out").read_text().split())) == [0, 1, 2, 3, 4, 5, 1003]  # once each
    assert run.stderr.count("sink: its code forked process") == 2
    assert run.stdout.count("finished") == 1  # one report
