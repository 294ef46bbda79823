"""Sources and stages that configs name by dotted path. They run in workers, which have NumPy anyway.

They are in a separate module, because stagepipe refuses dotted paths into the running script.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import stagepipe

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray


def pass_on(item: Any) -> Any:
    """Return the item unchanged."""
    return item


def tell_pid(item: int) -> tuple[int, int]:
    """Return the item and the id of this process."""
    return item, os.getpid()


class Arrays:
    """Items {id, array}: the same array every time, or each built in the outgoing shared memory."""

    def __init__(self, count: int, nbytes: int = 0, *, built: bool = False) -> None:
        self._count, self._nbytes, self._built = count, nbytes, built
        self._array = None if built or not nbytes else np.ones(nbytes, np.uint8)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._count):
            yield {"id": number, "array": _build(self._nbytes) if self._built else self._array}


def _build(nbytes: int) -> NDArray[np.uint8]:
    """Make an array in the outgoing shared memory. If a reference to it remains, the transport copies it."""
    array: NDArray[np.uint8] = stagepipe.empty(nbytes, np.uint8)
    array[:1] = 1
    return array


_SHAPE = (448, 448, 3)


def plus(item: int) -> int:
    """Add one."""
    return item + 1


def make(_: int) -> NDArray[np.uint8]:
    """Make an array of 602 kB in shared memory."""
    image: NDArray[np.uint8] = stagepipe.empty(_SHAPE, np.uint8)
    image[:] = 7
    return image


def look(image: NDArray[np.uint8]) -> int:
    """Read one value."""
    return int(image[0, 0, 0])


# ---------------------------------------------------------------------------------------------- benchmarks.concurrency

LATENCY_S: Final = 0.02
BODY: Final = b"x" * 20_000
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
_SIDE = 2048
_LAYERS = 6


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(EOFError, ConnectionError):  # the client is done; IncompleteReadError is an EOFError
        from asyncio import sleep

        while await reader.readuntil(b"\r\n\r\n"):
            await sleep(LATENCY_S)
            writer.write(_ANSWER)
            await writer.drain()


def serve(port_file: str) -> None:
    """Answer each request after LATENCY_S, and write the port to a file."""
    import asyncio  # only this process needs it, not the workers of other stages

    async def run() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        with open(port_file, "w", encoding="ascii") as file:  # noqa: ASYNC230, PTH123 - before the first request
            file.write(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()

    asyncio.run(run())


class Fetch:
    """Fetch a body from the server, over a connection that each thread keeps."""

    def __init__(self, port: int) -> None:
        """`port`: the port of the server."""
        from http.client import HTTPConnection

        self._connect = partial(HTTPConnection, "127.0.0.1", port)
        self._local = threading.local()

    def __call__(self, item: int) -> int:
        """Return the length of the body."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        connection.request("GET", f"/{item}")
        return len(connection.getresponse().read())


class Decode:
    """Decode the same JPEG for each item, of about 3 megapixels."""

    def __init__(self, library: str) -> None:
        """`library`: `pillow` or `opencv`."""
        from PIL import Image

        rows = np.arange(1536, dtype=np.uint8)[:, None, None]
        columns = np.arange(2048, dtype=np.uint8)[None, :, None]
        file = io.BytesIO()
        Image.fromarray((rows * 3 + columns * np.array([1, 2, 5], np.uint8)).astype(np.uint8)).save(file, "JPEG")
        self._data = file.getvalue()
        self._decode = {"pillow": _decode_with_pillow, "opencv": _decode_with_opencv}[library]

    def __call__(self, _: int) -> int:
        """Return the mean of a few pixels."""
        return int(self._decode(self._data)[::512, ::512].mean())


def _decode_with_pillow(data: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _decode_with_opencv(data: bytes) -> Any:
    import cv2

    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


class Model:
    """A model of 100 MB, in one thread for each call."""

    def __init__(self) -> None:
        """Build it."""
        import torch

        self._torch = torch
        self._model = torch.nn.Sequential(*(torch.nn.Linear(_SIDE, _SIDE) for _ in range(_LAYERS))).eval()

    def __call__(self, item: int) -> float:
        """Return an output."""
        with self._torch.inference_mode():
            return float(self._model(self._torch.full((16, _SIDE), float(item)))[0, 0])


# ---------------------------------------------------------------------------------------------- benchmarks.scaling


class Work:
    """Waits, as for a network or a disk, and computes. The number of the item determines both times."""

    def __init__(self, name: str, schedule: Sequence[tuple[int, float, float]]) -> None:
        """`schedule`: the item from which an entry applies, ms of waiting, and ms of computing."""
        self._name = name
        self._first, self._wait_ms, self._compute_ms = zip(*schedule, strict=True)

    def __call__(self, item: int) -> int:
        """Return the item. The first item of each entry writes its arrival time to the temporary folder."""
        place = bisect(self._first, item) - 1
        if item and item == self._first[place]:
            (Path(tempfile.gettempdir()) / f"{self._name}-{item}").write_text(str(time.monotonic()))
        if self._compute_ms[place]:
            end_ns = time.thread_time_ns() + int(self._compute_ms[place] * 1e6)
            while time.thread_time_ns() < end_ns:
                pass
        time.sleep(self._wait_ms[place] / 1e3)
        return item
