"""A server of images with faults, on addresses of loopback: python image_server.py PORT_FILE.

What happens to URL number n depends on n alone, and with `again` on how often it was asked for. `/counts` returns how
often each URL was asked for since the last `/reset`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

SHARES = {
    "image": 0.850,
    "slow": 0.040,
    "moved": 0.030,
    "again": 0.020,
    "missing": 0.020,
    "broken": 0.010,
    "cut": 0.010,
    "page": 0.010,
    "half": 0.004,
    "loop": 0.003,
    "silent": 0.003,
}
"""Of the URLs: an image after 10 to 50 ms, or after 1 s, after a redirect, or the second time (503 before); 404; 500;
a body that ends early; HTML instead of an image; half of an image's file; redirects without end; no answer."""
GOOD = ("image", "slow", "moved", "again")
HOSTS = 16
_SLOW_S = 1.0
_SILENT_S = 60.0
_SEED = 17
_PICTURES = 48


def choose_kind(number: int) -> str:
    """Return what happens to a URL."""
    return random.Random(f"{_SEED}-{number}").choices(list(SHARES), list(SHARES.values()))[0]


def make_url(number: int, port: int) -> str:
    """Return the URL of a number. Hosts differ: the addresses of 127.0.0.0/8 are all ours."""
    return f"http://127.0.0.{1 + number % HOSTS}:{port}/{number}.jpg"


def make_pictures() -> list[bytes]:
    """Return JPEG files of 640 x 480 or 480 x 640 pixels, cut from photographs that packages ship."""
    import skimage.data
    import sklearn.datasets

    photographs = [skimage.data.astronaut(), skimage.data.rocket(), *sklearn.datasets.load_sample_images().images]
    generator = np.random.default_rng(_SEED)
    files = []
    for number in range(_PICTURES):
        photograph = photographs[number % len(photographs)]
        height, width = photograph.shape[:2]
        size = int(generator.integers(200, min(height, width)))
        top, left = (int(generator.integers(side - size + 1)) for side in (height, width))
        picture = Image.fromarray(photograph[top : top + size, left : left + size])
        file = BytesIO()
        picture.resize((640, 480) if number % 2 else (480, 640), Image.Resampling.BICUBIC).save(
            file, "JPEG", quality=90
        )
        files.append(file.getvalue())
    return files


class ImageServer:
    """Answers requests with keep-alive."""

    def __init__(self) -> None:
        self._pictures = make_pictures()
        self._counts: Counter[int] = Counter()

    async def serve(self, write_port: Callable[[str], object]) -> None:
        """Write the port, and answer until this process is ended."""
        server = await asyncio.start_server(self._answer_all, "0.0.0.0", 0)  # all addresses of loopback
        write_port(str(server.sockets[0].getsockname()[1]))
        async with server:
            await server.serve_forever()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                if not await self._answer(request.split(b" ", 2)[1].decode(), writer):
                    break
                await writer.drain()
                if b"connection: close" in request.lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> bool:
        """Answer a request. Return whether the connection stays open."""
        if path == "/reset":
            self._counts.clear()
            return _send(writer, 200, b"")
        if path == "/counts":
            return _send(writer, 200, json.dumps(self._counts).encode())
        number = int(path.rpartition("/")[2].partition(".")[0])
        is_moved = path.startswith("/moved/")
        self._counts[number] += not is_moved
        kind = choose_kind(number)
        await asyncio.sleep({"slow": _SLOW_S, "silent": _SILENT_S}.get(kind, 0.01 + 0.04 * (number % 97) / 97))
        if (kind == "again" and self._counts[number] > 1) or (kind == "moved" and is_moved):
            kind = "image"
        picture = self._pictures[number % len(self._pictures)]
        half = picture[: len(picture) // 2]
        status = {"missing": 404, "broken": 500, "again": 503, "moved": 302, "loop": 302}.get(kind, 200)
        body = {"image": picture, "slow": picture, "half": half, "cut": half, "page": b"<html>no image</html>"}
        location = f"Location: /moved/{number}.jpg\r\n" if status == 302 else ""
        return _send(writer, status, body.get(kind, b""), location, missing_bytes=1000 * (kind == "cut"))


def _send(writer: asyncio.StreamWriter, status: int, body: bytes, headers: str = "", missing_bytes: int = 0) -> bool:
    length = len(body) + missing_bytes
    head = f"HTTP/1.1 {status} -\r\nContent-Type: image/jpeg\r\nContent-Length: {length}\r\n{headers}\r\n"
    writer.write(head.encode() + body)
    return not missing_bytes


if __name__ == "__main__":
    asyncio.run(ImageServer().serve(Path(sys.argv[1]).write_text))
