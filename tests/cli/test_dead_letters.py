"""`--dead-letters FILE` writes down what was skipped, and `--only-dead-letters FILE` runs that alone, as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stagepipe import Pipeline
from stagepipe.cli.app import app
from tests.zoo.pipelines import batch, pipeline, plain, stage

pytestmark = pytest.mark.timeout(60)

OPS = """
from pathlib import Path
import random

def draw(x):
    drawn = random.random()
    if x % 7 == 3 and not Path(__file__).with_name("mended").exists():
        raise ValueError(f"not {x}")
    return (x, drawn)

def write(x):
    with Path(__file__).with_name("out.txt").open("a") as file:
        print(*x, file=file)
"""

CONFIG = """
name: n
source: {uses: stagepipe.sources.numbers, with: {count: 20}}
stages:
  - {name: draw, uses: my_dead_ops.draw, on_error: skip, retries: 1}
sink: {uses: my_dead_ops.write}
"""


def run(*arguments: str, expect: int = 0) -> str:
    result = CliRunner().invoke(app, ["run", "-q", *arguments])
    assert result.exit_code == expect, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_dead_ops.py").write_text(OPS)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


def test_what_failed_is_run_again_alone_with_its_own_seeds(folder: Path):
    config, letters, report, out = (str(folder / name) for name in ("c.yaml", "dead.jsonl", "r.json", "out.txt"))
    run(config, "--dead-letters", letters, "--report", report)
    lines = [json.loads(line) for line in Path(letters).read_text().splitlines()]
    assert [(each["item"], each["stage"], each["attempts"]) for each in lines] == [
        (str(n), "draw", 2) for n in (3, 10, 17)
    ]
    assert lines == json.loads(Path(report).read_text())["dead_letters"]
    assert lines[0]["error"] == "ValueError: not 3"
    assert 'raise ValueError(f"not {x}")' in lines[0]["trace"]
    first = Path(out).read_text().splitlines()
    Path(out).unlink()
    (folder / "mended").touch()
    for source in (letters, report):
        run(config, "--only-dead-letters", source, "--inline", "stages.draw.retries=0")
    run(config, "--only-dead-letters", letters, "--dead-letters", letters, "stages.draw.workers=2")
    again = Path(out).read_text().splitlines()
    Path(out).unlink()
    run(config, "--inline")
    want = Path(out).read_text().splitlines()
    assert [line for line in want if line not in first] == again[:3] == again[3:6] == again[6:]
    assert "there are no dead letters in it" in run(config, "--only-dead-letters", letters, expect=2)


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "it cannot be read: No such file or directory"),
        ("", "there are no dead letters in it"),
        ("name: n", "neither a report nor what `--dead-letters FILE` writes"),
        ({"source": "another"}, "another `source` or `seed`; give the config and overrides of that run"),
        ({"source_items": []}, "it is not known of which source items"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_what_to_do(content: Any, words: str, folder: Path):
    path = folder / "dead.jsonl"
    if isinstance(content, dict):
        with Pipeline(folder / "c.yaml", inline=True) as running:
            mark = running.spec.source_sha256
        letter = {"item": "3", "stage": "draw", "error": "", "attempts": 1, "source_items": [3], "source": mark}
        content = json.dumps(letter | content)
    if content is not None:
        path.write_text(content)
    output = run(str(folder / "c.yaml"), "--only-dead-letters", str(path), "--inline", expect=2)
    assert words in " ".join(output.split())


@pytest.mark.parametrize("inline", [True, False])
def test_chosen_items_of_a_stream_behind_a_batch_and_in_a_later_epoch(inline: bool):
    stream = {"uses": "tests.zoo.failing.stream_of", "with": {"count": 12}}
    config = pipeline(stage("light_draws", name="draw"), source=stream, seed=9)
    with Pipeline(config, inline=True) as whole:
        want = [[plain(item) for item in whole] for _ in range(2)][1]
    with Pipeline(config, inline=inline, only=[7, 2]) as chosen:
        chosen.set_epoch(1)
        assert [plain(item) for item in chosen] == [want[2], want[7]]
    grouped = pipeline(stage("same"), batch(2), stage("light_draws", name="draw"), source=12)
    with Pipeline(grouped, inline=inline, only=range(4, 9)) as chosen:
        assert [item["item"].tolist() for item in chosen] == [[4, 5], [6, 7], [8]]
