"""Measure the Parquet sink: four workers, one worker, pyarrow in one process, and Ray Data's writer.

    python -m benchmarks.sinks [--rounds 6] [--rows 100000] [--compression snappy] [--folder DIR]

A row is a number, a short text and a float32 vector of 512: 2 kB. All contestants make the same rows from an array in
memory, and write them with the same compression: snappy takes little of the time, gzip most of it. Each turn is a new
process; the contestants take turns in a different order every round. The time covers one write: for stagepipe from
the start of its workers to the last record of its journal on the disk (fsync); Ray is initialized before, and neither
Ray nor pyarrow waits for the disk. CPU is the time of the process and all its descendants. The rows of all contestants
are read back and compared.

Ratios are to stagepipe with one worker, pair by pair within a round.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command import finish, make_parser, open_run
from benchmarks.common.figures import format_figures, require_same
from benchmarks.common.turn import CpuMeter, adopt_orphans, answer_turn, run_turn, take_rounds

_LIMIT_S = 600.0
_ROW_GROUP = 1000
_REFERENCE = "stagepipe, 1 worker"
_CONTESTANTS = (_REFERENCE, "stagepipe, 4 workers", "pyarrow", "Ray Data")


class Rows:
    """Rows by number."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.vectors = np.random.default_rng(0).standard_normal((1000, 512), np.float32)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "name": f"row {index}", "x": self.vectors[index % len(self.vectors)]}


def _write_with_stagepipe(rows: Rows, folder: Path, compression: Any, workers: int) -> None:
    from stagepipe import defer, from_source
    from stagepipe.sinks import parquet

    sink = defer(parquet, str(folder), part_items=_ROW_GROUP, compression=compression)
    from_source(rows).sink(sink, workers=workers).run()


def _write_with_pyarrow(rows: Rows, folder: Path, compression: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.list_(pa.float32()))])
    with pq.ParquetWriter(folder / "0.parquet", schema, compression=compression) as writer:
        for start in range(0, len(rows), _ROW_GROUP):
            group = [rows[index] for index in range(start, min(start + _ROW_GROUP, len(rows)))]
            writer.write_table(pa.Table.from_pylist(group, schema=schema))


def _write_with_ray(rows: Rows, folder: Path, compression: str) -> None:
    import ray

    shared = ray.put(rows)

    def make(batch: dict[str, Any]) -> dict[str, Any]:
        own = ray.get(shared)
        rows = [own[int(index)] for index in batch["id"]]
        return {name: np.stack([row[name] for row in rows]) for name in ("id", "name", "x")}

    made = ray.data.range(len(rows)).map_batches(make, batch_size=_ROW_GROUP)
    made.write_parquet(str(folder), min_rows_per_file=len(rows) // 8, compression=compression)


def _run_turn(contestant: str, rows: int, folder: str, compression: str) -> dict[str, float]:
    """Take one turn, in a separate process."""
    data = Rows(rows)
    out = Path(tempfile.mkdtemp(dir=folder or None))
    if contestant == "Ray Data":
        import ray

        ray.init(logging_level="ERROR", include_dashboard=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        cpu, begin_s = CpuMeter(), time.perf_counter()
        if contestant.startswith("stagepipe"):
            _write_with_stagepipe(data, out / "rows", compression, 4 if "4" in contestant else 1)
        elif contestant == "pyarrow":
            _write_with_pyarrow(data, out / "rows", compression)
        else:
            _write_with_ray(data, out / "rows", compression)
        wall_s, cpu_s = time.perf_counter() - begin_s, cpu.measure_s()
        return {"rows/s": rows / wall_s, "CPU us": cpu_s / rows * 1e6, "check": _check(out / "rows", rows)}
    finally:
        shutil.rmtree(out)


def _check(folder: Path, rows: int) -> float:
    import pyarrow.parquet as pq

    table = pq.read_table(folder, columns=["id", "x"])
    numbers = table["id"].to_numpy()
    assert np.array_equal(np.sort(numbers), np.arange(rows))
    sums = np.array([np.sum(vector, dtype=np.float64) for vector in table["x"].to_numpy()])
    return float(np.round(sums * 1e3).astype(np.int64) @ (numbers + 1))


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    if answer_turn(arguments, _run_turn):
        return
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of 2 kB")
    parser.add_argument("--compression", default="snappy", help="snappy, zstd, gzip, lz4 or none")
    parser.add_argument("--folder", default="", help="where to write; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    adopt_orphans()
    document = open_run("sinks")
    job = {"rows": options.rows, "folder": options.folder, "compression": options.compression}
    contestants = [name for name in _CONTESTANTS if name != "Ray Data" or importlib.util.find_spec("ray")]
    found = take_rounds(
        contestants, options.rounds, lambda name: run_turn("benchmarks.sinks", {"contestant": name, **job}, _LIMIT_S)
    )
    require_same(found, "check")
    print("", *format_figures("Parquet", found, ("rows/s", "CPU us"), _REFERENCE), sep="\n")
    finish(options.json, {**document, "figures": found})


if __name__ == "__main__":
    main(sys.argv[1:])
