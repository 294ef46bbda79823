"""The environment of a stage: threads, CPUs, variables, working folder, import path, context."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.pipelines import outputs, pipeline, stage

pytestmark = pytest.mark.timeout(60)


def test_threads_cpus_variables_folder_and_context():
    cpu = min(os.sched_getaffinity(0))
    keys = {"workers": 2, "threads": 2, "cpus": str(cpu), "env": {"MY_FLAG": "yes"}}
    items = outputs(pipeline(stage("same"), stage("surroundings", **keys), source=6, seed=9), epochs=2)
    assert {item["omp"] for item in items} == {"2"}
    assert {item["torch_threads"] for item in items} == {2}
    assert {item["flag"] for item in items} == {"yes"}
    assert all(item["cpus"] == [cpu] for item in items)
    assert {item["cwd"] for item in items} == {str(Path.cwd())}
    assert os.getpid() not in {item["pid"] for item in items}
    contexts = [item["context"] for item in items]
    assert [(stage, epoch, item, seed) for stage, _, epoch, item, seed in contexts] == [
        ("surroundings", epoch, (number,), 9) for epoch in (0, 1) for number in range(6)
    ]
    assert {worker for _, worker, *_ in contexts} <= {0, 1}
    assert os.environ.get("MY_FLAG") is None


def test_a_worker_has_one_thread_by_default():
    assert {item["torch_threads"] for item in outputs(pipeline(stage("surroundings"), source=2))} == {1}


def test_the_folder_of_the_config_is_on_the_import_path_and_holds_relative_files(tmp_path):
    (tmp_path / "my_own_ops.py").write_text("def triple(x):\n    return x * 3\n")
    (tmp_path / "files.py").write_text("import my_own_ops\n\ndef triple_too(x):\n    return my_own_ops.triple(x)\n")
    (tmp_path / "c.yaml").write_text(
        "name: c\nsource: {uses: stagepipe.sources.numbers, with: {count: 4}}\n"
        "stages:\n  - {name: a, uses: my_own_ops.triple}\n  - {name: b, uses: './files.py:triple_too'}\n"
    )
    assert outputs(tmp_path / "c.yaml") == [0, 9, 18, 27]


def run_script(script: Path, text: str, **keys: object) -> str:
    script.write_text(text)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False, **keys)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


FUNCTIONS = """
import stagepipe
from stagepipe import Pipeline

OFFSET = 10

class Source:
    def __len__(self): return 4
    def __getitem__(self, index): return index

def shift(x):
    return x + OFFSET

def parts(x):
    for part in range(2):
        yield make(x + part)

class Times:
    def __init__(self, factor): self.factor = factor
    def __call__(self, x): return x * self.factor

def make(x):
    return x
"""
RUN = """
limit = 12
config = {
    "name": "script",
    "source": {"uses": Source()},
    "stages": [
        {"name": "shift", "uses": shift, "workers": 2},
        {"name": "parts", "uses": parts},
        {"name": "closure", "uses": lambda x: stagepipe.SKIP if x > limit else x},
        {"name": "times", "uses": Times, "with": {"factor": 2}},
    ],
}
with Pipeline(config) as running:
    print(list(running))
"""
EXPECTED = "[20, 22, 22, 24, 24]\n"


@pytest.mark.parametrize("guarded", [False, True], ids=["bare", "guarded"])
def test_functions_and_classes_of_a_script(tmp_path, guarded):
    body = "if __name__ == '__main__':\n" + RUN.replace("\n", "\n    ") if guarded else RUN
    assert run_script(tmp_path / "script.py", FUNCTIONS + body, cwd=tmp_path) == EXPECTED


def test_items_of_a_class_of_a_script(tmp_path):
    point = "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n"
    text = point + FUNCTIONS.replace("return x\n", "return Point(x)\n") + RUN.replace("x > limit", "x.x > limit")
    assert (
        run_script(tmp_path / "script.py", text.replace("return x * self.factor", "return x.x * self.factor"))
        == EXPECTED
    )


def test_functions_of_a_notebook_cell(tmp_path):
    notebook = (
        f"cells = [{FUNCTIONS!r}, {RUN!r}]\nfor cell in cells:\n    exec(compile(cell, '<cell>', 'exec'), globals())\n"
    )
    assert run_script(tmp_path / "notebook.py", notebook) == EXPECTED


def test_an_omegaconf_object_and_overrides():
    from omegaconf import OmegaConf

    conf = OmegaConf.create(pipeline(stage("plus", with_={"amount": "${vars.amount}"}), source=3, vars={"amount": 5}))
    assert outputs(conf) == [5, 6, 7]
    assert outputs(conf, overrides=["stages.plus.with.amount=1", "stages.plus.workers=2"]) == [1, 2, 3]
