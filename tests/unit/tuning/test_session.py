"""What a report offers, what `auto` became; and where runs write: to folders next to the user's, never into these."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stagepipe.config import load
from stagepipe.core import UsageError
from stagepipe.report import WhatIf
from stagepipe.tuning import OutputSandbox
from stagepipe.tuning.session import list_auto_settings, list_offers
from tests.support.reports import make_report

SOURCE = {"uses": "stagepipe.sources.numbers", "with": {"count": 3}}
SAME = "tests.support.stages.same"


def offering(fix, *rows):
    report = make_report()
    return msgspec.structs.replace(report, verdict=msgspec.structs.replace(report.verdict, fix=fix), what_if=rows)


def row(gain, *overrides, reason=""):
    return WhatIf(kind="workers", change="", items_per_s=1.0, gain=gain, overrides=overrides, ineligible_reason=reason)


def test_the_fix_comes_first_and_then_the_other_rows_by_their_gain():
    rows = (row(0.1, "window=9"), row(0.5, "stages.a.workers=2"), row(0.3))
    report = offering("stages.b.fuse=true stages.b.workers=null", *rows)
    assert list(list_offers(report)) == [
        ("stages.b.fuse=true", "stages.b.workers=null"),
        ("stages.a.workers=2",),
        ("window=9",),
    ]


def test_changes_that_lose_or_are_ineligible_are_not_tried():
    report = offering("", row(-0.1, "window=1"), row(0.9, "order=any", reason="changes the order"))
    assert list(list_offers(report)) == []


def test_auto_becomes_numbers_at_the_places_where_it_was():
    stages = [
        {"name": "a", "uses": SAME, "workers": "auto"},
        {"name": "b", "uses": SAME, "fuse": "auto"},
        {"name": "c", "uses": SAME, "fuse": "auto"},
        {"name": "d", "uses": SAME, "workers": 2},
    ]
    sink = {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out"}, "workers": "auto"}
    spec = load({"source": SOURCE, "stages": stages, "sink": sink})
    a, b, c, d = spec.stages
    chosen = (replace(a, workers=3), replace(b, fuse=True), replace(c, fuse=False, workers=2), d)
    resolved = replace(spec, stages=chosen, sinks=(replace(spec.sinks[0], workers=4),))
    settings = list(list_auto_settings(spec, resolved))
    assert settings == [
        "stages.a.workers=3",
        "stages.b.fuse=true",
        "stages.b.workers=null",
        "stages.b.threads=null",
        "stages.c.fuse=false",
        "stages.c.workers=2",
        "sink.workers=4",
    ]
    again = load({"source": SOURCE, "stages": stages, "sink": sink}, settings)
    assert [(stage.workers, stage.fuse) for stage in again.stages] == [(3, False), (1, True), (2, False), (2, False)]
    assert again.sinks[0].workers == 4


def make_spec(sink, stages=(), **keys):
    config = {"source": {"uses": "stagepipe.sources.files", "with": {"glob": "*.x"}}, "stages": list(stages), **keys}
    return load(config if sink is None else {**config, "sink": sink})


def jsonl(path):
    return {"uses": "stagepipe.sinks.jsonl", "with": {"path": str(path)}}


def get_path(spec, number=0):
    return Path(spec.sinks[number].target.arguments["path"])


def test_a_trial_writes_next_to_the_sinks_folder_and_cleans_up(tmp_path):
    (tmp_path / "out").mkdir()
    with OutputSandbox(make_spec(jsonl(tmp_path / "out"))) as sandbox:
        path = get_path(sandbox.redirect(make_spec(jsonl(tmp_path / "out"))))
        assert path.parent.parent == tmp_path
        assert not path.exists()
        path.mkdir()
        (path / "000000.jsonl").touch()
        second = get_path(sandbox.redirect(make_spec(jsonl(tmp_path / "out"))))
        assert second != path
        assert not path.exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_folder_that_is_not_there_yet_has_the_nearest_parent_that_is(tmp_path):
    spec = make_spec(jsonl(tmp_path / "a" / "b" / "out"))
    with OutputSandbox(spec) as sandbox:
        assert get_path(sandbox.redirect(spec)).parent.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_each_sink_and_each_cache_has_a_folder(tmp_path):
    stage = {"name": "a", "uses": "tests.support.stages.same", "cache": str(tmp_path / "kept")}
    spec = make_spec([jsonl(tmp_path / "x"), jsonl(tmp_path / "y")], [stage], report={"html": str(tmp_path / "r.html")})
    with OutputSandbox(spec) as sandbox:
        redirected = sandbox.redirect(spec)
        paths = [get_path(redirected, 0), get_path(redirected, 1), Path(redirected.stages[0].cache.path)]
        assert len({*paths}) == 3
        assert all(path.parent.parent == tmp_path for path in paths)
        assert redirected.report.html_path is None


def test_a_sink_in_this_process_is_redirected_too(tmp_path):
    spec = make_spec({"uses": "stagepipe.sinks.npz", "with": {"path": str(tmp_path / "out")}})
    with OutputSandbox(spec) as sandbox:
        assert get_path(sandbox.redirect(spec)).parent.parent == tmp_path


@pytest.mark.parametrize("uses", ["tests.support.sink_stages.Notes", "benchmarks.verdicts.parts.SlowShards"])
def test_a_sink_of_ones_own_is_refused(uses, tmp_path):
    spec = make_spec({"uses": uses, "with": {"path": str(tmp_path)}})
    with pytest.raises(UsageError, match=rf"sink `{uses}`: .* --allow-writes"):
        OutputSandbox(spec)


def test_an_allowed_sink_whose_path_may_mean_anything_keeps_it(tmp_path):
    spec = make_spec({"uses": "tests.support.sink_stages.Notes", "with": {"path": str(tmp_path)}})
    with OutputSandbox(spec, allow_writes=True) as sandbox:
        assert get_path(sandbox.redirect(spec)) == tmp_path


def test_the_folder_of_an_allowed_part_sink_is_redirected(tmp_path):
    spec = make_spec({"uses": "benchmarks.verdicts.parts.SlowShards", "with": {"path": str(tmp_path / "out")}})
    with OutputSandbox(spec, allow_writes=True) as sandbox:
        assert get_path(sandbox.redirect(spec)).parent.parent == tmp_path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_parent_that_cannot_be_written_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with (
        pytest.raises(UsageError, match=r"cannot create one in .*: Permission denied"),
        OutputSandbox(make_spec(jsonl(tmp_path / "o"))),
    ):
        pass


def fail_inside(spec):
    with OutputSandbox(spec) as sandbox:
        get_path(sandbox.redirect(spec)).mkdir()
        raise ZeroDivisionError


def test_an_error_inside_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fail_inside(make_spec(jsonl(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
from tests.unit.tuning.test_session import get_path, jsonl, make_spec
from stagepipe.tuning import OutputSandbox
spec = make_spec(jsonl(sys.argv[1]))
with OutputSandbox(spec) as sandbox:
    get_path(sandbox.redirect(spec)).mkdir()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_kill_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []
