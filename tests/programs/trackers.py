"""Draw docs/pictures/trackers/: the figures of one run in TensorBoard, MLflow and Weights & Biases.

    python -m tests.programs.trackers              # all, two minutes on two CPUs
    python -m tests.programs.trackers tensorboard  # one of them

Requires TensorBoard, MLflow, wandb, Playwright and Matplotlib in the environment, and Chromium. No tracker contacts
another host: W&B runs offline, and its file is read back and plotted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.published.e4_servers import free_port
from stagepipe.report import Report, to_scalars
from stagepipe.torch import Loader

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures" / "trackers"
IMAGES = 2000
EPOCHS = 2
LOG_EVERY = 10
TRAIN_S = 0.02
"""The time of a training step, which the pictures show as the share of time that the loop does not wait."""
SERVER_TIMEOUT_S = 120
SETTLE_S = 40
BLOCK_BYTES, HEADER_BYTES, FULL, LAST = 32_768, 7, 1, 4
SHOWN = ("stagepipe/samples_per_s", "stagepipe/input_wait", "stagepipe_item_ms/decode", "stagepipe_busy/decode")


def main() -> None:
    """Make the images in a temporary folder, and run once for each tracker there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DRAWINGS)}; default: all")
    names: list[str] = parser.parse_args().names or list(DRAWINGS)
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stagepipe-trackers-") as folder:
        os.chdir(folder)
        make_images = (sys.executable, ROOT / "scripts/make_images.py", "--count", str(IMAGES), "--out", "data/images")
        subprocess.run(make_images, check=True, capture_output=True)
        for name in names:
            DRAWINGS[name](PICTURES / f"{name}.png")
        os.chdir(ROOT)


def train(log: Callable[[dict[str, float], int], None]) -> Report:
    """Log the figures of a loop whose training steps are sleeps."""
    with Loader(ROOT / "configs/quickstart.yaml", ["stages.batch.with.size=16"]) as loader:
        for step, _ in enumerate(itertools.chain.from_iterable(loader for _ in range(EPOCHS))):
            time.sleep(TRAIN_S)
            if step % LOG_EVERY == LOG_EVERY - 1:
                log(to_scalars(loader.progress(detailed=True)), step)
    return loader.report()


def draw_tensorboard(picture: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("tensorboard") as writer:

        def log(scalars: dict[str, float], step: int) -> None:
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)

        report = train(log)
        writer.add_text("verdict", report.verdict.sentence)
    with serve("tensorboard.main", "--logdir", "tensorboard", "--port") as url:
        take_picture(f"{url}/?darkMode=false&tagFilter={'%7C'.join(SHOWN)}#timeseries", picture)


def draw_mlflow(picture: Path) -> None:
    import mlflow

    store = f"sqlite:///{Path.cwd()}/mlflow.db"
    mlflow.set_tracking_uri(store)
    with mlflow.start_run() as run:
        report = train(lambda scalars, step: mlflow.log_metrics(scalars, step=step))
        mlflow.log_metrics(to_scalars(report, "stagepipe_report"))
    path = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/model-metrics"
    with serve("mlflow", "ui", "--backend-store-uri", store, "--workers", "1", "--port") as url:
        take_picture(f"{url}/{path}", picture)


def draw_wandb(picture: Path) -> None:
    import matplotlib.pyplot as plt
    import wandb

    with wandb.init(mode="offline", project="stagepipe", settings=wandb.Settings(silent=True)) as run:
        file = Path(run.dir).parent / f"run-{run.id}.wandb"
        report = train(lambda scalars, step: run.log(scalars, step=step))
        run.summary.update(to_scalars(report, "stagepipe_report"))
    rows = list(read_history(file))
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(12, 2.6), layout="constrained")
    for axis, name in zip(axes, SHOWN, strict=True):
        axis.plot([row["_step"] for row in rows], [row[name] for row in rows], marker=".")
        axis.set(title=name, xlabel="step", ylim=(0, None))
    figure.savefig(picture, dpi=100)


def read_history(file: Path) -> Iterator[dict[str, Any]]:
    """Yield what an offline run of W&B logged at each step."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in read_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}


def read_records(log: bytes) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB, whose records are cut into fragments at the ends of its blocks.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md. W&B puts seven bytes in front.
    """
    position, record = 7, b""
    while position < len(log):
        if 0 < -position % BLOCK_BYTES < HEADER_BYTES:  # what is left of a block has no room for a header
            position += -position % BLOCK_BYTES
            continue
        _, size, kind = struct.unpack_from("<IHB", log, position)
        position += HEADER_BYTES + size
        record += log[position - size : position]
        if kind in {FULL, LAST}:
            yield record
            record = b""


@contextmanager
def serve(*command: str) -> Iterator[str]:
    """Run a web server of a module on a free port of loopback until the block ends; yield its URL."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", *command, str(port), "--host", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + SERVER_TIMEOUT_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.5)
        yield url
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


def take_picture(url: str, picture: Path) -> None:
    """Save what Chromium shows of a page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url, timeout=SERVER_TIMEOUT_S * 1000)
        page.wait_for_timeout(SETTLE_S * 1000)
        page.screenshot(path=picture)
        browser.close()


DRAWINGS: dict[str, Callable[[Path], None]] = {
    "tensorboard": draw_tensorboard,
    "mlflow": draw_mlflow,
    "wandb": draw_wandb,
}

if __name__ == "__main__":
    main()
