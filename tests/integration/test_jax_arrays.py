"""Arrays of a pipeline become `jax.Array`s by DLPack, on the same memory, and keep their values while later items come.

It needs an environment `jax` in the folder that `STAGEPIPE_ENVIRONMENTS` names, with this project and torch in it.
"""

import subprocess
from pathlib import Path

import pytest

from tests.programs.sources import MissingSourceError, find_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = """
import numpy as np

def make(number):
    return {"id": number, "x": np.full((256, 256), number, np.float32)}
"""
PIPELINE = """
import gc, sys
import jax, jax.numpy as jnp, numpy as np
import rows, stagepipe

def check(items, address):
    kept, shared = [], 0
    for item in items:
        array = item["x"]
        converted = CONVERT(array)
        shared += converted.unsafe_buffer_pointer() == address(array)
        kept.append((item["id"], converted))
        del array, item, converted
        gc.collect()
    numbers = [int(number) for number, _ in kept]
    assert numbers == list(range(40)), numbers
    wrong = [number for number, array in kept if not np.all(np.asarray(array) == int(number))]
    assert not wrong, wrong
    print("shared", shared)

CONVERT = {convert}
pipeline = stagepipe.from_source(range(40)).map(rows.make, name="make", workers=2).with_options(memory=sys.argv[2])
if sys.argv[1] == "numpy":
    with pipeline.open() as items:
        check(items, lambda array: array.ctypes.data)
else:
    with pipeline.loader() as items:
        check(items, lambda array: array.data_ptr())
"""
LOOP = """
import json, sys
import jax, jax.numpy as jnp
import rows, stagepipe

@jax.jit
def step(weight, x):
    return weight - 0.01 * jax.grad(lambda w: jnp.mean((x * w - 1.0) ** 2))(weight)

def train(stop_after, saved):
    weight, done = jnp.float32(saved["weight"]), []
    with stagepipe.from_source(range(20)).map(rows.make, name="make").open() as pipeline:
        if saved["pipeline"]:
            pipeline.load_state_dict(saved["pipeline"])
        while pipeline.epoch < 2:
            for item in pipeline:
                weight = step(weight, jnp.from_dlpack(item["x"]) / 20)
                done.append((item["id"], float(weight)))
                if len(done) == stop_after:
                    return done, {"weight": float(weight), "pipeline": pipeline.state_dict()}
    return done, None

whole, _ = train(None, {"weight": 0.0, "pipeline": None})
begun, saved = train(27, {"weight": 0.0, "pipeline": None})
rest, _ = train(None, json.loads(json.dumps(saved)))
assert len(whole) == 40 and begun + rest == whole
print("equal")
"""


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return find_python("jax", ["jax[cpu]", "torch"])
    except MissingSourceError as error:
        pytest.skip(str(error))


def run(python: Path, folder: Path, script: str, *arguments: str) -> str:
    (folder / "rows.py").write_text(ROWS)
    (folder / "script.py").write_text(script)
    command = [python, "script.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("memory, is_held_whole", [("128MiB", True), ("24MiB", False)])
def test_arrays_keep_their_values_while_later_items_come(
    python: Path, tmp_path: Path, kind: str, memory: str, is_held_whole: bool
):
    """All 40 arrays of 256 KiB are held. Above a third of `memory` they are copies, which JAX may copy again."""
    script = PIPELINE.replace("{convert}", "jnp.from_dlpack")
    shared = int(run(python, tmp_path, script, kind, memory).removeprefix("shared "))
    assert (shared == 40) == is_held_whole
    assert shared > 10


def test_a_training_loop_goes_on_in_mid_epoch(python: Path, tmp_path: Path):
    assert run(python, tmp_path, LOOP) == "equal\n"
