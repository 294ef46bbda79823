"""Measure what a trace costs: the same pipelines with a trace and without, in turns in one process.

    python -m benchmarks.trace_cost [--rounds 9] [--only small,image] [--json FILE]

small   20,000 integers through a stage that adds one: some 6 us an item
image   1,500 arrays of 602 kB through two stages that read them, in shared memory

The time of a run is that of its loop, from the first item to the last. The file is written after it, by the close, and
stated apart. A run of each before the rounds warms the caches.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.command import add_names, finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.turn import take_rounds
from stagepipe import Pipeline

_STAGES = "benchmarks.common.stages"
_ITEMS = {"small": 20_000, "image": 1_500}
PIPELINES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "small": [{"name": "plus", "uses": f"{_STAGES}.plus"}],
    "image": [
        {"name": "make", "uses": f"{_STAGES}.make", "workers": 2},
        {"name": "look", "uses": f"{_STAGES}.look"},
    ],
}
_WITHOUT, _WITH = "without a trace", "with one"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = make_parser(__doc__, rounds=9)
    add_names(parser, "--only", tuple(PIPELINES), "pipeline")
    options = parser.parse_args(arguments)
    document = open_run("trace_cost")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json.gz"
        for name in options.only:
            for is_traced in (False, True):
                _run(name, path if is_traced else None)
            found = take_rounds(
                (_WITHOUT, _WITH),
                options.rounds,
                lambda how, name=name: _run(name, path if how == _WITH else None),  # type: ignore[misc]
            )
            document[name] = found
            print("", *format_figures(name, found, ["us an item"], _WITHOUT), sep="\n")
            print(*format_figures(f"{name}, close", found, ["s"]), sep="\n", flush=True)
    finish(options.json, document)


def _run(name: str, path: Path | None) -> dict[str, float]:
    """Return the time of the loop for an item, and that of the close."""
    source = {"uses": "stagepipe.sources.numbers", "with": {"count": _ITEMS[name]}}
    with Pipeline({"source": source, "stages": PIPELINES[name]}, trace=path) as pipeline:
        items = iter(pipeline)
        next(items)
        began_s = time.perf_counter()
        for item in items:
            del item
        ended_s = time.perf_counter()
        pipeline.close()
        return {"us an item": (ended_s - began_s) / _ITEMS[name] * 1e6, "s": time.perf_counter() - ended_s}


if __name__ == "__main__":
    main(sys.argv[1:])
