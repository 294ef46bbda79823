"""`stagepipe.sources.lance`, in a process of its own: once lance is imported, any `os.fork` of a process warns."""

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

SCRIPT = """
import os
import random
from pathlib import Path
import lance
import pyarrow as pa
from stagepipe import Pipeline
from stagepipe.sources import LanceSource

table = pa.table({"id": list(range(41)), "text": [f"line {number}" for number in range(41)]})
lance.write_dataset(table, "train.lance", max_rows_per_file=17)


def make_config(keys=(), **arguments):
    source = {"uses": "stagepipe.sources.lance", **dict(keys), "with": {"path": "train.lance", **arguments}}
    return {"name": "test", "seed": 3, "source": source}


with Pipeline(make_config(), inline=True) as pipeline:
    assert list(pipeline) == table.to_pylist()
    assert len(pipeline) == 41

shuffled = make_config(shuffle=True, columns=["id"])
states = []
with Pipeline(shuffled, inline=True) as pipeline:
    epochs = [[], []]
    for epoch in epochs:
        for item in pipeline:
            epoch.append(item["id"])
            states.append((epoch, len(epoch), pipeline.state_dict()))
assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(41))
assert epochs[0] != epochs[1]
states = [one for one in states if one[1] < 41]
for epoch, position, state in random.Random(3).sample(states, 20):
    with Pipeline(shuffled, inline=True) as pipeline:
        pipeline.load_state_dict(state)
        assert [item["id"] for item in pipeline] == epoch[position:]
ranks = [[item["id"] for item in Pipeline(shuffled, inline=True, rank=rank, world_size=3)] for rank in range(3)]
assert sorted(number for part in ranks for number in part) == list(range(41))
keys = {"workers": 3, "batch": {"size": 4}}
with Pipeline(make_config(keys, shuffle=True, columns=["id"])) as pipeline:
    assert [item["id"] for item in pipeline] == epochs[0]

lance.write_dataset(table.slice(0, 3), "a[1].lance")
os.mkdir("folder")
for path in ("a[1].lance", Path("a[1].lance"), "~/a[1].lance", ["./a*.lance"], Path.cwd() / "a[1].lance"):
    assert len(LanceSource(path)) == 3, path

for path, column, message in [
    ("train.lance", "txt", "has no column `txt`; did you mean `text`? It has id, text"),
    ("no.lance", "id", "lance: no file matches 'no.lance'"),
    (["train.lance", "no*"], "id", "lance: no file matches 'no*'"),
    ("*.lance", "id", "are 2 datasets"),
    ("folder", "id", "give the folder of a Lance dataset"),
]:
    try:
        len(LanceSource(path, columns=[column]))
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
"""


def test_lance_rows_are_shuffled_resumed_split_and_named(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
