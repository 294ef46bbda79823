"""One run of a planted pipeline, in a process of its own: `run_turn("benchmarks.verdicts.turn", job, limit)`."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common.turn import answer_turn
from benchmarks.verdicts.records import encode_record
from stagepipe import Pipeline
from stagepipe.api import open_shards, run_to_sink
from stagepipe.engine import LocalRun
from stagepipe.report import Report, RunRecord


def take_turn(
    config: Mapping[str, Any], overrides: Sequence[str], *, consumer_ms: float, cpu_group: str
) -> dict[str, Any]:
    """Run it. Return the rates, the verdict and the run's record. `cpu_group`: a folder of cgroup version 1 to join."""
    if cpu_group:
        (Path(cpu_group) / "cgroup.procs").write_text(str(os.getpid()))
    began_s = time.perf_counter()
    pipeline = Pipeline(config, list(overrides))
    with open_shards(pipeline) as shards, pipeline:
        if pipeline.spec.sinks:
            run_to_sink(pipeline, lambda _: None, shards=shards)
        else:
            for _ in pipeline:
                time.sleep(consumer_ms / 1000)
    wall_s = time.perf_counter() - began_s
    report = pipeline.report()
    record = _get_record(pipeline, report)
    return {
        "wall_s": wall_s,
        "steady": report.run.items_per_s,
        "total": report.run.items_in / wall_s,
        "verdict": msgspec.to_builtins(report.verdict),
        "other_cpus": record.other_cpus,
        "record": encode_record(record),
    }


def _get_record(pipeline: Pipeline, report: Report) -> RunRecord:
    """The record that the report was built from."""
    run = pipeline._run  # noqa: SLF001 - users have no need of it
    assert isinstance(run, LocalRun)
    return dataclasses.replace(run.make_record(), consumer=report.consumer)


if __name__ == "__main__":
    answer_turn(sys.argv[1:], take_turn)
