"""Pipelines whose buffers travel as files: the quick start, its report, and a worker that is killed."""

import io
import os
import shutil
import signal
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import stagepipe
from stagepipe.report import render_report
from stagepipe.transport import register_transport
from tests.foreign.file_transport import PREFIX, RAM_DISK

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture(autouse=True)
def files(monkeypatch):
    """The transport under the name `file`; no file of this process is left afterwards."""
    monkeypatch.setattr("stagepipe.transport.transports._targets", {})
    register_transport("file", "tests.foreign.file_transport:FileTransport")
    yield
    assert not list(RAM_DISK.glob(f"{PREFIX}{os.getpid()}-*"))


def make_images(folder: Path, count: int) -> None:
    for index in range(count):
        path = folder / f"class{index % 2}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((300, 300, 3), index, np.uint8)).save(path)


def test_the_quick_start_runs_and_its_report_names_the_transport(tmp_path):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    make_images(tmp_path / "images", 70)
    config = tmp_path / "configs" / "quickstart.yaml"
    overrides = [f"vars.images={tmp_path}/images", "transport.mode=file"]
    with stagepipe.Pipeline(config, overrides=overrides) as pipeline:
        batches = [len(batch["label"]) for batch in pipeline]
        report = pipeline.report()
    assert batches == [64, 6]
    assert {hop.transport.mode for hop in report.hops} == {"file", "local"}
    assert sum(hop.bytes.copied for hop in report.hops) > 70 * 224 * 224 * 3
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render_report(report))
    assert sum(" file " in line for line in console.export_text().splitlines()) >= 3


def make_array(number):
    return np.full(50_000, number, np.int64)


def die_once(array, marker):
    if array[0] == 5 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return array


def test_a_killed_worker_loses_nothing_and_leaves_no_file(tmp_path):
    marker = tmp_path / "died"
    here = "tests.foreign.file_transport.test_pipelines"
    config = {
        "name": "killed",
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 20}},
        "stages": [
            {"name": "make", "uses": f"{here}:make_array"},
            {"name": "die", "uses": f"{here}:die_once", "with": {"marker": str(marker)}, "workers": 2},
        ],
        "transport": {"mode": "file"},
    }
    with stagepipe.Pipeline(config) as pipeline:
        values = [int(array[0]) for array in pipeline]
        [folder] = RAM_DISK.glob(f"{PREFIX}{os.getpid()}-*")
        deadline_s = monotonic() + 60
        while any(not Path(f"/proc/{path.name.split('-')[0]}").exists() for path in folder.iterdir()):
            assert monotonic() < deadline_s, "what the dead worker held is still there"
            sleep(0.05)  # until its successor has entered the new era
    assert marker.exists()
    assert values == list(range(20))
