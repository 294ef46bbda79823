"""A pipeline on an S3 store that makes faults, through s3fs: moto's server, and `FaultyStore` between the two.

It needs an environment `s3` in the folder that `STAGEPIPE_ENVIRONMENTS` names, with this project in it.
"""

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.programs.sources import MissingSourceError, find_python
from tests.support import faulty_store
from tests.support.faulty_store import FAULTS, FaultyStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
COUNT = 3000
BYTES = 1500

SERVE = """
import sys, pathlib, boto3, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
host, port = server.get_host_and_port()
client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", aws_access_key_id="k", aws_secret_access_key="s",
                      region_name="us-east-1")
client.create_bucket(Bucket="bucket")
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    client.put_object(Bucket="bucket", Key=f"data/{path.name}", Body=path.read_bytes())
print(f"at {host}:{port}", flush=True)
sys.stdin.read()
"""
STAGE = """
import time

def name(item):
    time.sleep(0.002)
    key = item.get("__key__", item.get("id"))
    return {"id": int(key), "bytes": len(item.get("bin") or item["data"])}
"""
PATHS = {"jsonl": "data/*.jsonl", "webdataset": "data/*.tar", "parquet": "data/*.parquet"}


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return find_python("s3", ["moto[server,s3]", "s3fs", "pyarrow"])
    except MissingSourceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def upstream(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("data")
    for part in range(3):
        ids = range(part * COUNT // 3, (part + 1) * COUNT // 3)
        rows = [{"id": number, "data": f"{number:06d}" * (BYTES // 6)} for number in ids]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{part}.parquet", row_group_size=200, compression=None)
        with tarfile.open(folder / f"{part}.tar", "w") as archive:
            for number in ids:
                member = tarfile.TarInfo(f"{number:06d}.bin")
                member.size = BYTES
                archive.addfile(member, io.BytesIO(f"{number:06d}".encode() * (BYTES // 6)))
    command = [python, "-c", SERVE, folder]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        # moto prints a line of its own before.
        yield next(line.removeprefix("at ").strip() for line in process.stdout if line.startswith("at "))
        process.kill()


def write_job(folder: Path, kind: str, url: str, **options: object) -> None:
    storage = {"endpoint_url": url, "key": "k", "secret": "s"} | options
    (folder / "my_stage.py").write_text(STAGE)
    arguments = {"path": f"s3://bucket/{PATHS[kind]}", "shuffle": "blocks", "storage_options": storage}
    config = {
        "name": "store",
        "seed": 3,
        "source": {"uses": f"stagepipe.sources.{kind}", "workers": 2, "with": arguments},
        "stages": [{"name": "name", "uses": "my_stage.name"}],
        "sink": {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out", "part_items": 200}},
    }
    (folder / "job.yaml").write_text(json.dumps(config))


def start(python: Path, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environ = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "AWS_EC2_METADATA_DISABLED": "true"}
    command = [python.parent / "stagepipe", "run", "job.yaml", *arguments]
    with (folder / "output").open("w") as output:
        return subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT, text=True)


def count_written(folder: Path) -> int:
    """Return the bytes that a run has made durable, more or less: its shards, and its journal."""
    return sum(path.stat().st_size for path in (folder / "out").glob("*") if path.is_file())


def read_ids(folder: Path) -> list[int]:
    texts = [path.read_text() for path in sorted((folder / "out").glob("*.jsonl"))]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert all(row["bytes"] == BYTES for row in rows)
    return [row["id"] for row in rows]


@pytest.mark.parametrize("kind", list(PATHS))
def test_a_store_with_faults_gives_the_same_rows_and_so_does_a_killed_run(
    kind, python, upstream, tmp_path, monkeypatch
):
    monkeypatch.setattr(faulty_store, "STALL_S", 5.0)
    plain, faulty, killed = (tmp_path / name for name in ("plain", "faulty", "killed"))
    for folder in (plain, faulty, killed):
        folder.mkdir()
    with FaultyStore(upstream=upstream) as store:
        write_job(plain, kind, store.url)
        assert start(python, plain).wait(120) == 0, (plain / "output").read_text()
    expected = read_ids(plain)
    assert sorted(expected) == list(range(COUNT))
    with FaultyStore(upstream=upstream, share=0.25, seed=5, faults=FAULTS) as store:
        write_job(faulty, kind, store.url, config_kwargs={"read_timeout": 2})
        assert start(python, faulty).wait(240) == 0, (faulty / "output").read_text()
        assert read_ids(faulty) == expected
        assert sum(store.faults.values()) > 3
        write_job(killed, kind, store.url, config_kwargs={"read_timeout": 2})
        run = start(python, killed)
        deadline = time.monotonic() + 60
        while run.poll() is None and count_written(killed) < 10_000 and time.monotonic() < deadline:
            time.sleep(0.1)
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        assert start(python, killed, "--resume").wait(240) == 0, (killed / "output").read_text()
    assert read_ids(killed) == expected


def test_a_missing_bucket_and_a_store_that_is_not_there_end_by_name(python, upstream, tmp_path):
    for url, path, message in (
        (f"http://{upstream}", "s3://bucket/nothing/*.jsonl", "no file matches 's3://bucket/nothing/*.jsonl'"),
        (f"http://{upstream}", "s3://nobucket/data/*.jsonl", "s3://nobucket/data/*.jsonl"),
        ("http://127.0.0.1:9", "s3://bucket/data/*.jsonl", "s3://bucket/data/*.jsonl: cannot be listed: "),
    ):
        write_job(tmp_path, "jsonl", url)
        config = json.loads((tmp_path / "job.yaml").read_text())
        config["source"]["with"]["path"] = path
        (tmp_path / "job.yaml").write_text(json.dumps(config))
        code = start(python, tmp_path).wait(120)
        text = (tmp_path / "output").read_text()
        assert code in (1, 2), text
        assert message in text
        assert "Traceback" not in text
