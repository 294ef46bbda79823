"""The commonest mistakes as tables: what was written, and what the user is told, without a traceback of ours.

The first table has command lines, in a folder with the files below; the second has calls from Python.
"""

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stagepipe import Pipeline, from_dataset, from_source
from stagepipe.cli.app import app

OPS = """
import numpy as np

SIZE = 3

def double(item): return item * 2
def add(item): return item + 1
def crop(item, size): return item
async def fetch(item): return item
def forgets(item): item * 2
def yields_none(item): yield None
def forgets_in_list(items): return [None for item in items]
def tiles(item): return [item, item]
def record(item): return {"image": np.zeros((4, 6, 3), "uint8"), "label": item, "path": f"photos/{item}.jpg"}
def wants(item): return item["imge"]
def broken(item): raise ValueError("is broken")
def ragged(item): return np.zeros(item + 1)

class Resize:
    def __init__(self, size): self.size = size
"""
TRAIN = """
name: train
source: {uses: stagepipe.sources.numbers, with: {count: 5}}
stages:
  - {name: double, uses: my_ops.double}
  - {name: add, uses: my_ops.add}
"""
FILES = {
    "my_ops.py": OPS,
    "train.yaml": TRAIN,
    "07none.yaml": TRAIN,
    "tab.yaml": TRAIN.replace("  - {name: add", "\t- {name: add"),
    "twice.yaml": TRAIN + "seed: 1\nseed: 2\n",
    "same_name.yaml": TRAIN.replace("name: add", "name: double"),
    "no_source.yaml": TRAIN.replace("source:", "sauce:"),
    "mapping.yaml": TRAIN.replace("  - {name: double, uses: my_ops.double}\n  - {", "  {"),
    "reference.yaml": TRAIN + "seed: ${vars.sede}\nvars: {seed: 3}\n",
}


@dataclass(frozen=True)
class Mistake:
    """A command line, and parts of what it prints."""

    command: str
    parts: tuple[str, ...]
    exit_code: int = 2


def wrong(command: str, *parts: str) -> Mistake:
    """A call or a config that is refused before anything starts."""
    return Mistake(command, parts)


def failing(overrides: str, *parts: str) -> Mistake:
    """A run that a stage's mistake ends."""
    return Mistake(f"run train.yaml --inline -q {overrides}", parts, exit_code=1)


COMMANDS = [
    # the call
    wrong("train.yaml", "did you mean `stagepipe run train.yaml`?"),
    wrong("rnu train.yaml", "No such command 'rnu'"),
    wrong("run --workers 4 train.yaml", "no option `--workers`", "write `stages.NAME.workers=4`"),
    wrong("run train.yaml --num-workers=4", "write `stages.NAME.workers=4`"),
    wrong("run train.yaml --seed 3", "no option `--seed`", "write `seed=3`"),
    wrong("validate trian.yaml", "trian.yaml: no such file", "did you mean `train.yaml`?"),
    wrong("validate train.yaml add", "not a valid override", "write path.to.key=value"),
    # keys
    wrong("validate train.yaml windw=3", "unknown key `windw`", "did you mean `window`?"),
    wrong("validate train.yaml workers=3", "`workers` belongs in `source`, or in an entry of `stages`"),
    wrong("validate train.yaml stages.double.num_workers=3", "did you mean `workers`?"),
    wrong("validate train.yaml stages.doble.workers=3", "did you mean `stages.double`?"),
    wrong("validate train.yaml stages.double.batch_size=3", "stagepipe.stages.Batch"),
    wrong("validate train.yaml source.count=3", "did you mean `source.with.count=3`?"),
    wrong("validate train.yaml sink.uses=stagepipe.sinks.npz sink.overwrite=true", "`sink.with.overwrite=true`"),
    wrong("validate no_source.yaml", "no_source.yaml:3:1: unknown key `sauce`", "did you mean `source`?"),
    wrong("validate twice.yaml", "twice.yaml:8:1", "`seed`"),
    wrong("validate same_name.yaml", "duplicate stage name `double`; first used at line 5"),
    wrong("validate tab.yaml", "tab.yaml:6:", "tab"),
    wrong("validate mapping.yaml", "`stages`: expected a list", "write `- {name: decode"),
    wrong("validate reference.yaml", "vars.sede", "did you mean"),
    # values
    wrong("validate train.yaml stages.double.workers=0", "`stages.double.workers`", "at least 1"),
    wrong("validate train.yaml stages.double.workers=many", "found the string `many`"),
    wrong("validate train.yaml stages.double.timeout=soon", "`stages.double.timeout`", "30s"),
    wrong("validate train.yaml memory=lots", "`memory`", "4GiB"),
    wrong("validate train.yaml stages.double.fuse=yes", "expected true or false", "write true"),
    wrong("validate train.yaml stages.double.on_error=ignore", "did you mean `skip`?"),
    wrong("validate train.yaml transport.mode=shm", "did you mean `shared_memory`?"),
    wrong("validate train.yaml stages.add.fuse=true stages.add.workers=2", "a fused stage cannot have `workers`"),
    Mistake("validate train.yaml stages.double.workers=300", ("note: stage double has 300 workers on ", " CPU"), 0),
    # targets
    wrong("validate train.yaml stages.double.uses=my_ops.doubel", "did you mean `double`?"),
    wrong("validate train.yaml stages.double.uses=my_opps.double", "did you mean `my_ops`?"),
    wrong("validate train.yaml stages.double.uses=double", "not an import path", "did you mean `./my_ops.py:double`?"),
    wrong("validate train.yaml stages.double.uses=./my_ops.py", "write `./my_ops.py:function`"),
    wrong("validate train.yaml stages.double.uses=my_ops.SIZE", "`my_ops.SIZE` is a constant (3)"),
    wrong("validate train.yaml source.uses=my_ops.SIZE source.with=null", "`my_ops.SIZE` is a constant (3)"),
    wrong("validate train.yaml stages.double.uses=my_ops.Resize stages.double.with.size=3", "has no `__call__`"),
    wrong("validate train.yaml stages.double.when=my_ops.fetch", "`my_ops.fetch` is an async function", "asyncio.run"),
    wrong("validate train.yaml stages.double.uses=my_ops.crop", "needs the argument `size`"),
    wrong("validate train.yaml stages.double.with.factor=3", "`my_ops.double` has no argument `factor`"),
    wrong("validate train.yaml sink.uses=sinks.npz", "did you mean `stagepipe.sinks.npz`?"),
    wrong("validate train.yaml sink.uses=stagepipe.sinks.nqz", "did you mean `npz`?"),
    wrong("validate train.yaml sink.uses=sinks.parquett", "did you mean `stagepipe.sinks.parquet`?"),
    # in a stage
    failing("stages.double.uses=my_ops.forgets", "stage double returned None for item 0: did you forget `return`?"),
    failing(
        "stages.double.uses=my_ops.forgets stages.double.on_error=skip",
        "`stages.double.allow_none=true` if None",
    ),
    failing("stages.double.uses=my_ops.yields_none", "stage double yielded None for item 0.0: yield stagepipe.SKIP"),
    failing("stages.double.uses=my_ops.forgets_in_list stages.double.batch.size=2", "double returned None for item 0"),
    failing("stages.double.uses=my_ops.tiles", "a list of 2: did you mean to yield its elements?"),
    failing(
        "stages.double.uses=my_ops.record stages.add.uses=my_ops.wants",
        "item 0: KeyError: 'imge'; the item is a dict with image (uint8 array 4x6x3), label (int), path (str)",
    ),
    failing(
        "stages.double.uses=my_ops.record stages.add.uses=my_ops.broken",
        "stage add, worker 0, item 0: ValueError: is broken; its `path` is photos/0.jpg",
    ),
    failing(
        "stages.double.uses=my_ops.ragged stages.add.uses=stagepipe.stages.Batch stages.add.with.size=2",
        "stage add, worker 0, item 1: ValueError: Batch:",
        "resize, crop or pad before Batch",
    ),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_ops", None)


def test_the_table_has_forty():
    assert len(COMMANDS) + len(CALLS) >= 40
    assert len({mistake.command for mistake in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("mistake", COMMANDS, ids=lambda mistake: mistake.command)
@pytest.mark.usefixtures("folder")
def test_a_wrong_command_is_answered_with_the_right_one(mistake):
    result = CliRunner().invoke(app, mistake.command.split())
    assert result.exit_code == mistake.exit_code, result.output
    for part in mistake.parts:
        assert part in result.output
    assert "stagepipe/runtime" not in result.output
    assert "Traceback" not in result.output or "my_ops.py" in result.output


@pytest.mark.usefixtures("folder")
def test_a_name_that_is_not_similar_is_not_suggested():
    assert "did you mean" not in CliRunner().invoke(app, ["validate", "nope.yaml"]).output


NUMBERS = from_source(range(3))


def forgets(item: int) -> None:
    str(item)


def numbers() -> Iterator[int]:
    yield 1


def halves(item: int) -> Iterator[float]:
    yield item / 2


class Model:
    def __call__(self, item: int) -> int:
        return item


def after_the_end() -> Any:
    with NUMBERS.open(inline=True) as pipeline:
        pass
    return list(pipeline)


def with_a_lock() -> Any:
    lock = threading.Lock()

    def guarded(item: int) -> int:
        with lock:
            return item

    return NUMBERS.map(guarded).run()


CALLS = [
    (lambda: NUMBERS.map(forgets).take(1), "stage forgets returned None for item 0: did you forget `return`?"),
    (lambda: NUMBERS.map(halves), "a generator function yields several items per input; use .flat_map(halves)"),
    (lambda: NUMBERS.map(Model), "write .map(defer(Model, ...)) to build one in each worker"),
    (lambda: NUMBERS.map(Model()(3)), ".map(3): expected a function, found int"),
    (lambda: NUMBERS.map(abs, worker=2).open(), "did you mean `workers`?"),
    (lambda: NUMBERS.batch(2, workers=2).open(), "cannot have `workers`"),
    (lambda: from_source(range(3), workers=2).open(), "one process reads it"),
    (lambda: from_dataset([1, 2], num_workers=2).open(), "did you mean `workers`?"),
    (lambda: list(NUMBERS), "a builder has no items; write `with builder.open() as pipeline:`"),
    (lambda: len(from_source(numbers).open(inline=True)), "length unknown"),
    (lambda: Pipeline(3), "a config must be a path, a mapping, an OmegaConf object or a builder, found int"),
    (lambda: Pipeline({"source": {"uses": range(3)}, "stage": []}), "did you mean `stages`?"),
    (after_the_end, "this pipeline is closed; make a new one"),
    (with_a_lock, "stage guarded: the variable `lock` of guarded (lock) cannot be sent to a worker: TypeError"),
    (lambda: NUMBERS.map(np.zeros).map_field("x", abs).take(1), "the field `x` needs a dict item"),
]


@pytest.mark.parametrize("call,message", CALLS, ids=[message[:50] for _, message in CALLS])
def test_a_wrong_call_is_answered_with_the_right_one(call, message):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the message is compared below
        call()
    assert message in str(caught.value)
