"""`stagepipe top` finds the run that is meant, shows it as a table or as JSON, and leaves it as it is."""

import json
import os
import threading

import pytest
from rich.console import Console

from stagepipe import Pipeline
from stagepipe.cli.live_table import draw_live_run
from stagepipe.report import LIVE_SCHEMA, LiveHop, LivePercentiles, LiveRun, LiveStage
from tests.support.command import call_here
from tests.support.kills import until
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(60)
NAP = stage("nap", with_={"seconds": 0.005})
RUN = LiveRun(
    name="thumbnails",
    run_id="4711-1",
    pid=4711,
    state="running",
    elapsed_ns=75 * 10**9,
    items_done=1234,
    items_total=2000,
    items_out=19,
    samples_out=1216,
    items_per_s=345.2,
    samples_per_s=340.0,
    limited_by="decode",
    shared_memory_bytes=12 << 20,
    shared_memory_limit_bytes=4 << 30,
    stages=(
        LiveStage(name="source", workers=1, items=1300, items_per_s=345.0, busy=0.02, blocked=0.97, rss_bytes=42 << 20),
        LiveStage(
            name="decode",
            fused=("resize",),
            workers=2,
            items=1250,
            items_per_s=345.0,
            busy=0.93,
            starved=0.01,
            work=0.97,
            queued=13.4,
            run_ns=LivePercentiles(p50=5_600_000, p99=9_000_000),
            rss_bytes=120 << 20,
            errors=3,
            restarts=1,
        ),
        LiveStage(name="batch", workers=1, is_starting=True),
        LiveStage(name="sink", workers=1, items=19, items_per_s=5.3, starved=0.9, queued=0.1),
    ),
    hops=(
        LiveHop(source="source", target="decode", messages=1250, cost_ns=LivePercentiles(p50=9_000, p99=40_000)),
        LiveHop(source="resize", target="batch"),
        LiveHop(source="batch", target="sink", messages=19, cost_ns=LivePercentiles(p50=120_000, p99=400_000)),
    ),
)
TABLE = """
thumbnails  process 4711  running  1,234 of 2,000 items  62 %  345 items/s  340 samples/s  1:15  shared memory 13 MB of 4.3 GB
decode limits the run: it works 97 % of its time

  stage            workers      rate  busy  starved  blocked  queue  run p50  hop p50  hop p99     RSS  errors  restarts
────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
  source                 1     345/s   2 %      0 %     97 %                                     44 MB       0         0
> decode + resize        2     345/s  93 %      1 %      0 %   13.4   5.6 ms   9.0 µs    40 µs  126 MB       3         1
  batch                  1  starting                            0.0                                          0         0
  sink                   1     5.3/s   0 %     90 %      0 %    0.1            120 µs   400 µs               0         0
"""  # noqa: E501 - as wide as the terminal


def draw(run: LiveRun, width: int) -> list[str]:
    console = Console(width=width, record=True, force_terminal=False, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(draw_live_run(run))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_table_has_a_line_for_each_process_and_marks_the_limit():
    assert draw(RUN, 130) == TABLE.strip("\n").splitlines()


def test_a_narrow_terminal_shows_all_columns():
    lines = draw(RUN, 60)
    assert all(len(line) <= 60 for line in lines)
    assert all(any(heading in line for line in lines) for heading in ("busy", "hop p99", "restarts"))


def test_a_run_is_found_by_name_by_process_and_as_the_only_one(socket_folder):
    with Pipeline(pipeline(NAP, source=100_000, name="one")) as running:
        next(iter(running))
        for arguments in (["one"], [str(os.getpid())], []):
            result = call_here("top", *arguments, "--once", "--json", "--interval", "0.1")
            assert (result.exit_code, result.stderr) == (0, "")
            [line] = result.stdout.splitlines()
            seen = json.loads(line)
            assert (seen["schema"], seen["name"], seen["pid"]) == (LIVE_SCHEMA, "one", os.getpid())
            assert next(iter(seen)) == "schema"
            assert [each["name"] for each in seen["stages"]] == ["source", "nap", "sink"]
            assert seen["hops"][0]["from"] == "source"
        result = call_here("top", "--once", "--interval", "0.1")
        assert result.exit_code == 0
        assert "one  process" in result.stdout
        assert "hop p99" in result.stdout


def test_no_run_and_several_runs_are_told_apart(socket_folder):
    result = call_here("top")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no run found: none of yours is going on this machine" in result.stderr
    with (
        Pipeline(pipeline(NAP, source=100_000, name="first")) as first,
        Pipeline(pipeline(NAP, source=100_000, name="second")) as second,
    ):
        next(iter(first))
        next(iter(second))
        ids = sorted(path.name for path in socket_folder.iterdir())
        assert len(ids) == 2
        for arguments, sentence in (([], "several runs"), ([str(os.getpid())], "several"), (["third"], "no run has")):
            result = call_here("top", *arguments, "--once")
            assert (result.exit_code, result.stdout) == (2, "")
            assert sentence in result.stderr
            assert all(f"  {each}  " in result.stderr for each in ids)
            assert "first" in result.stderr
        result = call_here("top", "second", "--once", "--json", "--interval", "0.1")
        assert json.loads(result.stdout)["name"] == "second"
        result = call_here("top", ids[0], "--once", "--json", "--interval", "0.1")
        assert json.loads(result.stdout)["run_id"] == ids[0]


def test_it_ends_with_the_run(socket_folder):
    running = Pipeline(pipeline(NAP, source=100_000, name="one"))
    ended = threading.Event()

    def iterate_until_the_run_is_watched() -> None:
        with running:
            for _ in running:
                if ended.is_set():
                    return

    thread = threading.Thread(target=iterate_until_the_run_is_watched)
    thread.start()
    try:
        until(lambda: socket_folder.exists() and call_here("top", "one", "--once", "--json").exit_code == 0)
        threading.Timer(1.0, ended.set).start()
        result = call_here("top", "one", "--json", "--interval", "0.2")
    finally:
        ended.set()
        thread.join()
    assert result.exit_code == 0
    states = [json.loads(line)["state"] for line in result.stdout.splitlines()]
    assert len(states) > 1
    assert (states[0], states[-1]) == ("running", "ended")


@pytest.mark.parametrize("interval", ["0", "-1", "never"])
def test_a_wrong_interval_is_refused(interval):
    called = call_here("top", "--interval", interval)
    assert called.exit_code == 2
    assert "Invalid value for '--interval'" in called.stderr
