"""The quickstart and the feature extraction on the local engine, on Ray Data and on islands: the same samples.

And the report of each, which shows that both nodes have worked.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.demo_data import load_script
from tests.support.paths import ROOT
from tests.support.ray_nodes import RayNodes
from tests.support.sink_output import list_shards

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = str(Path(sys.executable).parent / "stagepipe")
IMAGES = 90
ENGINES = {"local": "local", "ray": "ray", "islands": "{ray: {inside: local}}"}


@pytest.fixture(scope="module")
def nodes():
    with RayNodes(2, 2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "images"
    load_script("make_images")["make"](folder, IMAGES, seed=17)
    return folder


def run(cluster: RayNodes, config: Path, engine: str, images: Path, out: Path) -> None:
    """Run a copy of a config on an engine, its rows in `out`."""
    overrides = [f"engine={ENGINES[engine]}", f"vars.images={images}", f"sink.with.path={out}"]
    if "extract" in config.read_text():  # the last bits of a model's result depend on the batch, which the engines cut
        overrides.append("stages.extract.batch.size=1")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if engine == "local" else cluster.environment
    command = [COMMAND, "run", config.name, *overrides, "--quiet", "--report", f"{out}.json"]
    subprocess.run(command, cwd=config.parent, env=environment, check=True, timeout=400)


def read_in_order(out: Path, kind: str) -> list[list[Any]]:
    """The rows of the run, or of each of its two islands."""
    folders = sorted(out.glob("island-*")) or [out]
    return [[row for shard in list_shards(folder) for row in _read_shard(shard, kind)] for folder in folders]


def _read_shard(shard: Path, kind: str) -> list[Any]:
    if kind == "parquet":
        import pyarrow.parquet as pq

        return pq.read_table(shard).to_pylist()
    return [digest for line in shard.read_text().splitlines() for digest in json.loads(line)["digests"]]


@pytest.fixture(params=["quickstart", "feature_extraction"])
def job(request, tmp_path):
    """A copy of the config, and the kind of its shards. The quickstart gets a sink for the digests of its samples."""
    if request.param == "feature_extraction":
        folder = shutil.copytree(ROOT / "examples/feature_extraction", tmp_path / "job")
        return folder / "feature_extraction.yaml", "parquet"
    folder = shutil.copytree(ROOT / "configs", tmp_path / "job")
    path = folder / "quickstart.yaml"
    config = yaml.safe_load(path.read_text())
    config["stages"].append({"name": "digest", "uses": "tests.support.sample_digests.digest_batch"})
    config["sink"] = {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out"}}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path, "jsonl"


def test_all_engines_make_the_same_samples(job, nodes, images, tmp_path):
    config, kind = job
    rows = {}
    for engine in ENGINES:
        run(nodes, config, engine, images, tmp_path / engine)
        rows[engine] = read_in_order(tmp_path / engine, kind)
    (local,) = rows["local"]
    assert len(local) == IMAGES
    assert len({str(row) for row in local}) == IMAGES, "samples differ, so that their order shows"
    reports = {engine: json.loads((tmp_path / f"{engine}.json").read_text()) for engine in ENGINES}
    assert [reports[engine]["run"]["items_in"] for engine in ("local", "ray")] == [IMAGES, IMAGES]
    hops = [hop["store"] for hop in reports["ray"]["hops"] if hop.get("store")]
    assert sum(hop.get("moved_bytes") or 0 for hop in hops) > 0, "blocks went from one node to the other"
    assert [island["report"]["run"]["items_in"] for island in reports["islands"]["islands"]] == [IMAGES // 2] * 2
    assert len({island["node"] for island in reports["islands"]["islands"]}) == 2
    assert rows["ray"] == [local]
    assert rows["islands"] == [local[0::2], local[1::2]]
