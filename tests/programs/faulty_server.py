"""A local HTTP server whose answers are late, wrong or missing, as a seed says: python -m tests.programs.faulty_server.

`GET /RUN/NUMBER` answers with the square of the number, `GET /RUN/seconds` with the time from the run's first call to
its last answer: some tools hand out nothing before they have everything. What goes wrong depends on the number and on
how often it was asked for in this run, and never at the fourth time: so with three retries nothing is lost.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter

from aiohttp import web

LATENCY_S = 0.02
SLOW_S = 0.2
HANG_S = 30.0
FAULTS = {"slow": 0.05, "error": 0.02, "drop": 0.01, "hang": 0.001}
"""The share of the calls that are slow, answered by a 500, dropped or not answered."""
MAX_FAULTS = 3


def choose_fault(number: int, attempt: int) -> str:
    """Return what goes wrong with a call; "" for nothing."""
    draw = random.Random(f"{number}.{attempt}").random()
    for fault, share in FAULTS.items():
        draw -= share
        if draw < 0:
            return fault if fault == "slow" or attempt <= MAX_FAULTS else ""
    return ""


_attempts: Counter[tuple[str, int]] = Counter()
_times_s: dict[str, tuple[float, float]] = {}
"""By run, its first call and its last answer."""


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer a call."""
    run, number = request.match_info["run"], int(request.match_info["number"])
    _attempts[run, number] += 1
    _times_s.setdefault(run, (time.monotonic(), 0.0))
    fault = choose_fault(number, _attempts[run, number])
    await asyncio.sleep({"slow": SLOW_S, "hang": HANG_S}.get(fault, LATENCY_S))
    if fault == "error":
        raise web.HTTPInternalServerError
    if fault == "drop" and request.transport is not None:
        request.transport.abort()
    _times_s[run] = (_times_s[run][0], time.monotonic())
    return web.json_response({"number": number, "square": number * number})


async def tell_seconds(request: web.Request) -> web.Response:
    """Answer with the time that a run took, in s."""
    begin_s, end_s = _times_s[request.match_info["run"]]
    return web.json_response(end_s - begin_s)


async def serve() -> None:
    """Print the port, and serve until standard input ends."""
    application = web.Application()
    application.router.add_get("/{run}/seconds", tell_seconds)
    application.router.add_get("/{run}/{number}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - the caller reads it
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
