"""Compare `concurrency` with more workers: items in progress on threads of one worker, or each in a separate worker.

    python -m benchmarks.concurrency [--rounds 6] [--only fetch,pillow,opencv,model] [--json FILE]

fetch    a request to a local HTTP server that answers after 20 ms: 16 workers, or one worker with 16 threads
pillow   a JPEG of 3 megapixels, decoded by Pillow: 2 workers, or one worker with 2 threads
opencv   the same with OpenCV
model    a torch model of 100 MB: 2 workers, or one worker with 2 threads

The rate is measured in the loop from the first item to the last. The start is the time until the first item. The memory
is the proportional memory (PSS) of all processes that the run has started, at the end of the loop.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from benchmarks.common.command import add_names, finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.stages import serve
from benchmarks.common.turn import CpuMeter, take_rounds
from stagepipe import Pipeline

_STAGES = "benchmarks.common.stages"


class _Job(NamedTuple):
    items: int
    degree: int
    uses: str
    arguments: Mapping[str, Any]


JOBS: Final[Mapping[str, _Job]] = {
    "fetch": _Job(4_000, 16, "Fetch", {}),
    "pillow": _Job(200, 2, "Decode", {"library": "pillow"}),
    "opencv": _Job(200, 2, "Decode", {"library": "opencv"}),
    "model": _Job(200, 2, "Model", {}),
}


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add_names(parser, "--only", tuple(JOBS), "job")
    options = parser.parse_args(arguments)
    document = open_run("concurrency", packages=("pillow", "opencv-python-headless"))
    with tempfile.TemporaryDirectory() as folder:
        port = _start_server(Path(folder) / "port") if "fetch" in options.only else 0
        for name in options.only:
            job = JOBS[name]
            ways = {f"{job.degree} workers": "workers", f"1 worker, concurrency {job.degree}": "concurrency"}
            more = {"port": port} if name == "fetch" else {}
            for way in ways.values():
                _run(job, way, more)
            found = take_rounds(
                tuple(ways),
                options.rounds,
                lambda way, job=job, ways=ways, more=more: _run(job, ways[way], more),  # type: ignore[misc]
            )
            document[name] = found
            figures = ["items/s", "MB", "start s", "CPU ms an item"]
            print("", *format_figures(name, found, figures, next(iter(ways))), sep="\n", flush=True)
    finish(options.json, document)


def _start_server(port_file: Path) -> int:
    multiprocessing.get_context("spawn").Process(target=serve, args=(str(port_file),), daemon=True).start()
    deadline_s = time.monotonic() + 30
    while not (port_file.exists() and port_file.read_text()):
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.05)
    return int(port_file.read_text())


def _run(job: _Job, way: str, more: Mapping[str, Any]) -> dict[str, float]:
    others = set(psutil.Process().children(recursive=True))
    stage = {"name": "work", "uses": f"{_STAGES}.{job.uses}", "with": {**job.arguments, **more}, way: job.degree}
    source = {"uses": "stagepipe.sources.numbers", "with": {"count": job.items}}
    began_s = time.perf_counter()
    with Pipeline({"source": source, "stages": [stage]}) as pipeline:
        items = iter(pipeline)
        next(items)
        meter, first_s = CpuMeter(), time.perf_counter()
        count = sum(1 for _ in items)
        seconds, cpu_s = time.perf_counter() - first_s, meter.measure_s()
        processes = set(psutil.Process().children(recursive=True)) - others
        memory_bytes = sum(process.memory_full_info().pss for process in processes)
        return {
            "items/s": count / seconds,
            "MB": memory_bytes / 1e6,
            "start s": first_s - began_s,
            "CPU ms an item": cpu_s / count * 1e3,
        }


if __name__ == "__main__":
    main(sys.argv[1:])
