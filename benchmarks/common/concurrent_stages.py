"""The stages of `benchmarks.concurrency`, and the server that one of them waits for."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import threading
from typing import Any, Final

import numpy as np

LATENCY_S: Final = 0.02
BODY: Final = b"x" * 20_000
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
_SIDE = 2048
_LAYERS = 6


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the client is done
        while await reader.readuntil(b"\r\n\r\n"):
            await asyncio.sleep(LATENCY_S)
            writer.write(_ANSWER)
            await writer.drain()


def serve(port_file: str) -> None:
    """Answer each request after LATENCY_S, and write the port to a file."""

    async def run() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        with open(port_file, "w", encoding="ascii") as file:  # noqa: ASYNC230, PTH123 - before the first request
            file.write(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()

    asyncio.run(run())


class Fetch:
    """Fetch a body from the server, over a connection that each thread keeps."""

    def __init__(self, port: int) -> None:
        """`port`: that of the server."""
        self._port = port
        self._local = threading.local()

    def __call__(self, item: int) -> int:
        """Return the length of the body."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection("127.0.0.1", self._port)
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
