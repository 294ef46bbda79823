"""Images of a list of URLs, resized, to shards of WebDataset: stagepipe beside img2dataset."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq

from benchmarks.common.turn import make_environment
from tests.programs.offline.contest import (
    CONTESTANTS,
    STAGEPIPE,
    Output,
    Program,
    Result,
    find_version,
    hold_contest,
    is_stagepipe_worker,
    name_stagepipe,
    read_shards,
)
from tests.programs.offline.image_server import GOOD, choose_kind, make_url
from tests.programs.sources import find_python

JOB = "images of URLs, resized, to WebDataset"
COUNT = 1500
"""URLs; a run takes 10 to 30 s on two CPUs."""
_ROUNDS = 4
"""More than in other jobs: what a turn takes hangs on few URLs and differs more."""
_START_S = 30.0


@contextmanager
def serve_images() -> Iterator[int]:
    """Run the server in a process of its own; give its port."""
    with TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, str(Path(__file__).with_name("image_server.py")), str(port_file)]
        server = subprocess.Popen(command, env=make_environment())
        try:
            deadline_s = time.monotonic() + _START_S
            while not (port_file.exists() and port_file.read_text()):
                if time.monotonic() > deadline_s or server.poll() is not None:
                    raise RuntimeError("the server of images does not start")
                time.sleep(0.05)
            yield int(port_file.read_text())
        finally:
            server.kill()
            server.wait()


def make_id(number: int) -> str:
    """Return the name of a URL in the list."""
    return f"{number:06d}"


def ask_server(port: int, path: str) -> bytes:
    """Return the server's answer to a request that is not counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
        return answer.read()


def read_stagepipe(folder: Path) -> Output:
    """Return the samples of its shards, and the URLs that failed, from the file of dead letters."""
    letters = folder / "dead.jsonl"
    lines = letters.read_text().splitlines() if letters.exists() else []
    failures = [(make_id(json.loads(line)["source_items"][0]), json.loads(line)["error"]) for line in lines]
    return _read_images(folder / "out", lambda key, fields: key, failures)


def read_img2dataset(folder: Path) -> Output:
    """Return the samples of its shards, and the URLs that failed, from its tables."""
    failures = []
    for path in sorted((folder / "out").glob("*.parquet")):
        try:
            table = pq.read_table(path, columns=["id", "status", "error_message"])
        except OSError:
            continue  # it has no end; its shard has none either
        failures += [(row["id"], row["error_message"]) for row in table.to_pylist() if row["status"] != "success"]
    return _read_images(folder / "out", lambda key, fields: json.loads(fields["json"])["id"], failures)


def _read_images(folder: Path, find_id: Callable[[str, dict[str, bytes]], str], failures: Any) -> Output:
    samples, unreadable = read_shards(folder)
    rows = [(find_id(key, fields), fields["jpg"]) for key, fields in samples]
    return Output(rows=rows, failures=failures, unreadable=unreadable)


def make_programs() -> list[Program]:
    """Return the contestants. Each finds `urls.jsonl` in its folder."""
    run = [*STAGEPIPE, "run", str(CONTESTANTS / "download.yaml"), "--dead-letters", "dead.jsonl", "--quiet"]
    python = find_python("img2dataset", ["img2dataset"])
    return [
        Program(
            name=name_stagepipe(),
            commands=[run],
            resume=[[*run, "--resume"]],
            read=read_stagepipe,
            is_worker=is_stagepipe_worker,
            notes="`order: any`, 64 threads, two processes that decode; OpenCV 5 decodes and encodes, Pillow resizes",
        ),
        Program(
            name=f"img2dataset {find_version(python, 'img2dataset')}",
            commands=[[str(python), str(CONTESTANTS / "run_img2dataset.py")]],
            environment={"NO_ALBUMENTATIONS_UPDATE": "1"},
            read=read_img2dataset,
            is_worker=lambda line: "spawn_main" in line,
            notes="two processes of 32 threads, OpenCV 4; it asks three times for a 404 too, and waits without end "
            "for a worker that was killed; start-up and the slowest URLs, for which each of its shards waits, are much "
            "of its time, so a long list goes faster",
        ),
    ]


def measure(**options: Any) -> Sequence[dict[str, str]]:
    """Hold the contest and return its rows."""
    with serve_images() as port:
        images = sum(choose_kind(number) == "image" for number in range(COUNT))

        def prepare(folder: Path) -> None:
            ask_server(port, "reset")
            lines = (json.dumps({"id": make_id(number), "url": make_url(number, port)}) for number in range(COUNT))
            (folder / "urls.jsonl").write_text("".join(f"{line}\n" for line in lines))

        def count_calls(_: Path) -> dict[str, int]:
            """Return how often each URL that gives an image at once was asked for."""
            counts = json.loads(ask_server(port, "counts"))
            return {number: count for number, count in counts.items() if choose_kind(int(number)) == "image"}

        results = hold_contest(
            make_programs(), prepare=prepare, count_calls=count_calls, items=images, **{"rounds": _ROUNDS, **options}
        )
    return [
        {"job": JOB, "rows": text, **result.make_row(COUNT)}
        for result, text in zip(results, compare(results), strict=True)
    ]


def compare(results: Sequence[Result]) -> list[str]:
    """Return what each wrote, beside what should come of each kind of URL, and how much the pictures differ."""
    texts = []
    first = dict(results[0].output.rows)
    for result in results:
        rows = dict(result.output.rows)
        good = {make_id(number) for number in range(COUNT) if choose_kind(number) in GOOD}
        missing = Counter(choose_kind(int(key)) for key in good - set(rows))
        extra = Counter(choose_kind(int(key)) for key in set(rows) - good)
        text = f"{len(rows)} of {len(good)} images, {len(result.output.failures)} failures with a reason"
        for label, kinds in (("lost", missing), ("written although bad", extra)):
            if kinds:
                text += f"; {label}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}"
        if result is not results[0]:
            differences = [_differ(first[key], rows[key]) for key in sorted(set(first) & set(rows))[::20]]
            text += f"; pixels differ by {np.mean(differences):.1f} of 255 from those of {results[0].program.name}"
        texts.append(text)
    return texts


def _differ(one: bytes, other: bytes) -> float:
    pictures = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).astype(np.int16) for data in (one, other)]
    return float(np.abs(pictures[0] - pictures[1]).mean())
