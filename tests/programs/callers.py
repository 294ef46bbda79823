"""One contestant of the table `async`, in its own environment: it calls the server for each number, in order.

`python -m tests.programs.callers JOB RESULT`; the job names the contestant. Each has the same number of calls in
progress, a time limit of one second a call, and three retries. Where a tool has no limits and retries, the function
that it calls has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 1.0
RETRIES = 3
WINDOW = 256
"""Tasks of `spdl-wide`, of which no more are calls in progress than elsewhere."""


class Fetch:
    """A call by aiohttp, once."""

    def __init__(self, url: str) -> None:
        """Make the session, on the event loop."""
        import aiohttp

        self.url = url
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def __call__(self, number: int) -> int:
        """Return the square of the number."""
        async with self.session.get(f"{self.url}/{number}") as response:
            response.raise_for_status()
            square: int = (await response.json())["square"]
            return square

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()


class PatientFetch:
    """The same with a time limit and retries, for tools that have none. Its session is made by the first call."""

    def __init__(self, url: str) -> None:
        """`url` is that of the server."""
        self.url = url
        self.fetch: Fetch | None = None

    async def __call__(self, number: int) -> int:
        """Return the square of the number."""
        self.fetch = self.fetch or Fetch(self.url)
        for attempt in range(1 + RETRIES):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    return await self.fetch(number)
            except Exception:
                if attempt == RETRIES:
                    raise
        raise AssertionError


class LimitedFetch(PatientFetch):
    """The same with a bound of its own for the calls in progress."""

    def __init__(self, url: str, calls: int) -> None:
        """`url` is that of the server."""
        super().__init__(url)
        self.limit = asyncio.Semaphore(calls)

    async def __call__(self, number: int) -> int:
        """Return the square of the number."""
        async with self.limit:
            return await super().__call__(number)


class RayFetch(PatientFetch):
    """The same for rows."""

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        """Return a row with the square."""
        return {"square": await super().__call__(int(row["id"]))}


class ThreadFetch:
    """A call by http.client, with a connection for each thread: aiohttp is not for threads."""

    def __init__(self, url: str) -> None:
        """`url` is that of the server."""
        self.host, self.run = url.removeprefix("http://").split("/")
        self.local = threading.local()

    def __call__(self, number: int) -> int:
        """Return the square of the number."""
        connection = getattr(self.local, "connection", None) or http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        self.local.connection = None
        connection.request("GET", f"/{self.run}/{number}")
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise OSError(response.status)
        self.local.connection = connection
        square: int = json.loads(body)["square"]
        return square


def call_by_stagepipe(function: type, url: str, items: int, concurrency: int, **keys: Any) -> Iterator[int]:
    """An `async def` stage, or threads."""
    import stagepipe

    stage = stagepipe.defer(function, url=url)
    built = stagepipe.from_source(range(items)).map(
        stage, concurrency=concurrency, retries=RETRIES, on_error="skip", name="fetch", **keys
    )
    with built.open() as results:
        yield from results


def call_by_spdl(fetch: PatientFetch, items: int, concurrency: int, order: str = "input") -> Iterator[int]:
    """SPDL's pipeline, whose event loop runs in this process."""
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(range(items))
    builder = builder.pipe(fetch, concurrency=concurrency, output_order=order).add_sink(concurrency)
    pipeline = builder.build(num_threads=1)
    with pipeline.auto_stop():
        yield from pipeline


def call_by_ray(url: str, items: int, concurrency: int) -> Iterator[int]:
    """An actor of Ray Data with `async def __call__`."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    rows = ray.data.range(items, override_num_blocks=max(items // 64, 1)).map(
        RayFetch,
        fn_constructor_args=(url,),
        concurrency=1,
        max_concurrency=concurrency,
    )
    for row in rows.iter_rows():
        yield row["square"]


def make_results(contestant: str, url: str, items: int, concurrency: int) -> Iterable[int]:
    """Return the results of a contestant, as they come."""
    if contestant == "stagepipe":
        return call_by_stagepipe(Fetch, url, items, concurrency, timeout=f"{TIMEOUT_S}s")
    if contestant == "threads":
        return call_by_stagepipe(ThreadFetch, url, items, concurrency)
    if contestant == "ray":
        return call_by_ray(url, items, concurrency)
    if contestant == "spdl-wide":
        return call_by_spdl(LimitedFetch(url, concurrency), items, WINDOW)
    return call_by_spdl(PatientFetch(url), items, concurrency, {"spdl": "input", "spdl-any": "completion"}[contestant])


def measure_cpu_s() -> float:
    """Return the CPU time so far of this process and of all below it that live, with what they have collected."""
    fields = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            rest = path.read_text().rpartition(")")[2].split()  # proc_pid_stat(5), from the third field on
            fields[int(path.parent.name)] = (int(rest[1]), sum(map(int, rest[11:15])))
    tree, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _) in fields.items() if parent in tree} - tree
        tree |= more
        grown = bool(more)
    return sum(fields[pid][1] for pid in tree) / os.sysconf("SC_CLK_TCK")


def main(job_file: str, result_file: str) -> None:
    """Run a contestant and write what it did."""
    job = json.loads(Path(job_file).read_text())
    from_s = time.monotonic()
    found: list[int] = []
    times_s: list[float] = []
    first_cpu_s, cpu_s = 0.0, None
    for square in make_results(**job):
        times_s.append(time.monotonic())
        found.append(square)
        if len(found) == 1:
            first_cpu_s = measure_cpu_s()
        if len(found) == job["items"]:
            cpu_s = measure_cpu_s() - first_cpu_s  # while all processes live
    expected = [number * number for number in range(job["items"])]
    result = {
        "memory_from_s": from_s,
        "first_s": times_s[0] - from_s,
        "lost": len(set(expected) - set(found)),
        "doubled": len(found) - len(set(found)),
        "in_order": found == sorted(found),
        "cpu_s": cpu_s,
    }
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
