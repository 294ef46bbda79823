"""Draw docs/pictures/report.svg: the report of a real run, and the effect of the fixes that the verdicts offer.

    python -m scripts.draw_report

The run fetches 400 photographs from a server on this machine, which answers after 25 ms, like an object store, and
makes thumbnails of them. Its verdict must offer a fix, and each fix must gain; there may be none on a machine whose
CPUs are busy with other programs. Look at the picture afterwards:

    chromium --headless --screenshot=report.png --window-size=1200,1000 docs/pictures/report.svg
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from stagepipe.report import Report, from_json, render_brief, render_summary

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "report.svg"
WIDTH = 90  # characters
PHOTOGRAPHS = 400
DELAY_S = 0.025
COMMAND = ("stagepipe", "run", "thumbnails.yaml")
TIMEOUT_S = 300
RUNS = 4

STAGES = """
    import io
    import os
    from pathlib import Path
    from urllib.request import urlopen

    import numpy as np
    from PIL import Image


    def list_urls():
        return [f"{os.environ['STORE']}/{path}" for path in Path("listing.txt").read_text().split()]


    def fetch(url):
        with urlopen(url) as answer:
            return {"url": url, "jpeg": answer.read()}


    def decode(item):
        return {"url": item["url"], "image": np.asarray(Image.open(io.BytesIO(item["jpeg"])).convert("RGB"))}


    def resize(item, size):
        return {**item, "image": np.asarray(Image.fromarray(item["image"]).resize((size, size)))}
"""

CONFIG = """
    name: thumbnails
    source: {uses: ./ops.py:list_urls}
    stages:
      - {name: fetch, uses: ./ops.py:fetch}
      - {name: decode, uses: ./ops.py:decode}
      - {name: resize, uses: ./ops.py:resize, with: {size: 224}}
    sink: {uses: stagepipe.sinks.npz, with: {path: thumbnails/, overwrite: true}}
"""


class SlowStore(SimpleHTTPRequestHandler):
    """Serves the files of a folder, each after a delay."""

    def do_GET(self) -> None:
        """Wait, then answer."""
        time.sleep(DELAY_S)
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Print nothing."""


def main() -> None:
    """Run until no verdict offers a fix, at most four times, and draw the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURE)
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory(prefix="stagepipe-picture-") as name:
        folder = Path(name)
        runs = follow_verdicts(folder)
    for (fix, report), (_, before) in zip(runs[1:], runs, strict=False):
        gain = report.run.items_per_s / before.run.items_per_s
        print(f"{fix}: {gain:.2f} times the items/s")
        if gain <= 1:
            raise SystemExit("a fix did not gain")
    draw(runs, out)


def follow_verdicts(folder: Path) -> list[tuple[str, Report]]:
    """Run the pipeline unchanged, then with each verdict's fix; return the overrides and the report of each run."""
    write_pipeline(folder)
    with serve(folder) as environment:
        runs = [("", run(folder, environment))]
        while len(runs) < RUNS and (fix := runs[-1][1].verdict.fix):
            runs.append((fix, run(folder, environment, *shlex.split(fix))))
    if len(runs) == 1:
        raise SystemExit(f"no fix: {runs[0][1].verdict.sentence}")
    return runs


def write_pipeline(folder: Path) -> None:
    """Write the photographs, their list, the stages and the config to `folder`."""
    make = [sys.executable, str(ROOT / "scripts" / "make_images.py"), "--count", str(PHOTOGRAPHS), "--out", "images"]
    subprocess.run(make, cwd=folder, check=True, timeout=TIMEOUT_S)
    photographs = sorted(str(path.relative_to(folder)) for path in folder.glob("images/**/*.jpg"))
    (folder / "listing.txt").write_text("\n".join(photographs))
    (folder / "ops.py").write_text(textwrap.dedent(STAGES))
    (folder / "thumbnails.yaml").write_text(textwrap.dedent(CONFIG))


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[dict[str, str]]:
    """Serve the files of `folder`; yield the environment of a run that fetches them."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {**os.environ, "STORE": f"http://127.0.0.1:{server.server_port}"}
    finally:
        server.shutdown()


def make_handler(folder: Path) -> Callable[..., SlowStore]:
    """Return the handler of requests for files in `folder`."""
    return lambda *request: SlowStore(*request, directory=str(folder))


def run(folder: Path, environment: dict[str, str], *overrides: str) -> Report:
    """Run the pipeline; return its report."""
    command = [str(Path(sys.executable).with_name("stagepipe")), *COMMAND[1:], *overrides, "--report", "report.json"]
    subprocess.run([*command, "--quiet"], cwd=folder, env=environment, check=True, timeout=TIMEOUT_S)
    return from_json((folder / "report.json").read_bytes())


def draw(runs: Sequence[tuple[str, Report]], path: Path) -> None:
    """Draw the first report, and the head of the others."""
    with record_terminal(path, "stagepipe", WIDTH) as console:
        for fix, report in runs:
            console.print(Text.assemble(("$ ", "bold green"), (" ".join((*COMMAND, fix)), "bold")))
            console.print(render_brief(report) if report is runs[0][1] else render_summary(report))


@contextlib.contextmanager
def record_terminal(path: Path, title: str, width: int) -> Iterator[Console]:
    """Yield a terminal that shows nothing, `width` characters wide; save its output as a picture, an SVG file."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True, color_system="truecolor")
        yield console
    console.save_svg(str(path), title=title, theme=MONOKAI)


if __name__ == "__main__":
    main()
