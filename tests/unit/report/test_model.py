"""The JSON has the documented schema and survives a round trip."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stagepipe.core import UsageError
from stagepipe.report import build_report, from_json, to_json


def test_a_report_survives_a_round_trip_through_json(rich_record):
    report = build_report(rich_record)
    assert from_json(to_json(report)) == report


def test_the_json_has_the_documented_field_names(rich_record):
    plain = json.loads(to_json(build_report(rich_record)))
    assert next(iter(plain)) == "schema"
    assert plain["schema"] == "stagepipe.report/2"
    assert set(plain) >= {
        *("schema", "name", "config_sha256", "host", "calibration", "run", "stages", "hops", "memory", "slowest"),
        *("dead_letters", "restarts", "verdict"),
    }
    assert set(plain["host"]) >= {"cpus", "memory_bytes", "kernel", "python", "versions"}
    assert set(plain["run"]) >= {
        *("status", "items_in", "items_out", "samples_out", "items_skipped", "wall_ns", "items_per_s"),
        *("first_item_ns", "timing_overhead"),
    }
    assert set(plain["run"]["timing_overhead"]) == {"ns_per_hop", "how"}
    numbers = {"p50", "p90", "p99", "max", "mean"}
    stage = plain["stages"][1]
    assert set(stage) >= {
        *("name", "workers", "items", "starting", "busy", "starved", "blocked", "overhead", "run_ns", "cpu_ns"),
        *("rss_bytes", "pss_bytes", "errors", "skipped", "retries", "crashes"),
    }
    assert set(stage["run_ns"]) == numbers
    hop = plain["hops"][0]
    assert set(hop) >= {
        *("from", "to", "transport", "messages", "bytes", "cost_ns", "phases", "predicted", "saved_ns"),
    }
    assert set(hop["transport"]) == {"mode", "threshold_bytes", "reason", "changes"}
    assert set(hop["messages"]) == {"local", "pipe", "shared_memory", "mixed", "object_store"}
    assert set(hop["bytes"]) == {"inline", "copied", "zero_copy"}
    phases = ["encode_ns", "copy_ns", "pack_wait_ns", "send_ns", "send_wait_ns"]
    phases += ["queue_ns", "receive_ns", "decode_ns"]
    assert list(hop["phases"]) == phases
    assert set(hop["phases"]["copy_ns"]) == numbers
    assert set(hop["predicted"]) == {
        *("pipe_ns", "shared_memory_ns", "median_ns", "measured_median_ns", "measured_ratio"),
    }
    assert set(plain["memory"]) == {"arena_peak_bytes", "arena_limit_bytes", "copied_out_items"}
    dead_letter = {"item", "stage", "error", "attempts"} | {"epoch", "source_items", "source_sha256", "trace"}
    assert set(plain["dead_letters"][0]) == dead_letter
    assert set(plain["restarts"][0]) == {"stage", "worker", "cause", "item", "lost_ns", "kind"}
    assert set(plain["consumer"]) == {
        *("wait_ns", "busy_ns", "name", "first_wait_ns", "outside_loop_ns", "is_sink", "items", "files"),
    }
    assert set(plain["verdict"]) >= {"limited_by", "kind", "confidence", "sentence", "fix"}


def test_the_json_is_indented(rich_record):
    assert to_json(build_report(rich_record)).startswith(b'{\n  "schema": "stagepipe.report/2",\n  "name"')


def test_numpy_values_in_the_calibration_become_python_values(make):
    record = make.record(make.stage(), calibration={"curve": np.arange(3), "slope": np.float64(0.5)})
    assert json.loads(to_json(build_report(record)))["calibration"] == {"curve": [0, 1, 2], "slope": 0.5}


def test_a_field_of_a_later_version_is_ignored(rich_record):
    report = build_report(rich_record)
    plain = json.loads(to_json(report)) | {"news": 1}
    assert from_json(json.dumps(plain)) == report


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not a stagepipe.report/2 file"),
        ("{", "not a stagepipe.report/2 file"),
        (b"\xff\xfe", "not a stagepipe.report/2 file"),
        ("[]", "not a stagepipe.report/2 file"),
        ("{}", "its schema is 'none'"),
        ('{"schema": "stagepipe.report/1"}', "its schema is 'stagepipe.report/1', expected 'stagepipe.report/2'"),
        ('{"schema": 1}', r"\$.schema"),
        ('{"schema": "stagepipe.report/2"}', "missing required field `name`"),
    ],
)
def test_a_file_that_is_not_a_report_is_rejected_with_the_reason(text, message):
    with pytest.raises(UsageError, match=message):
        from_json(text)
