"""`--dead-letters FILE` writes the skipped items; `--only-dead-letters FILE` runs just those, with the same seeds."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stagepipe import Pipeline, StagepipeError, UsageError
from stagepipe.cli.app import app
from tests.support.pipelines import batch, pipeline, plain, stage

pytestmark = pytest.mark.timeout(60)

OPS = """
from pathlib import Path
import random

def draw(x):
    drawn = random.random()
    if x % 7 == 3 and not Path(__file__).with_name("fixed").exists():
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


def test_failed_items_are_retried_one_by_one_with_the_same_seeds(folder: Path):
    config, dead_letters, report, out = (str(folder / name) for name in ("c.yaml", "dead.jsonl", "r.json", "out.txt"))
    run(config, "--dead-letters", dead_letters, "--report", report)
    lines = [json.loads(line) for line in Path(dead_letters).read_text().splitlines()]
    assert [(line["item"], line["stage"], line["attempts"]) for line in lines] == [
        (str(n), "draw", 2) for n in (3, 10, 17)
    ]
    assert lines == json.loads(Path(report).read_text())["dead_letters"]
    assert lines[0]["error"] == "ValueError: not 3"
    assert 'raise ValueError(f"not {x}")' in lines[0]["trace"]
    first = Path(out).read_text().splitlines()
    Path(out).unlink()
    (folder / "fixed").touch()
    for path in (dead_letters, report):
        run(config, "--only-dead-letters", path, "--inline", "stages.draw.retries=0")
    run(config, "--only-dead-letters", dead_letters, "--dead-letters", dead_letters, "stages.draw.workers=2")
    retried = Path(out).read_text().splitlines()
    Path(out).unlink()
    run(config, "--inline")
    expected = Path(out).read_text().splitlines()
    assert [line for line in expected if line not in first] == retried[:3] == retried[3:6] == retried[6:]
    assert "the file has no dead letters" in run(config, "--only-dead-letters", dead_letters, expect=2)


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot read the file: No such file or directory"),
        ("", "the file has no dead letters"),
        ("name: n", "neither a report nor the output of `--dead-letters FILE`"),
        ({"source_sha256": "another"}, "a different `source` or `seed`; use the config and overrides of that run"),
        ({"source_sha256": ""}, "a line has no `source_sha256`: another version of stagepipe wrote it"),
        (b"\xff", "neither a report nor the output"),
        ('{"item": ' + "[" * 9999, "neither a report nor the output"),
        ({"source_items": [-1]}, "there is no source item -1; items are numbered from 0"),
        ({"source_items": [10**20]}, f"there is no source item {10**20}"),
        ({"source_items": [99999]}, "an epoch of this source has 20 items, so there is no item 99,999 to run"),
        ({"epoch": -1}, "there is no epoch -1; epochs are numbered from 0"),
        ({"source_items": []}, "the source items of these dead letters are unknown"),
    ],
)
def test_a_file_that_does_not_fit_is_rejected_with_a_fix(content: Any, words: str, folder: Path):
    path = folder / "dead.jsonl"
    if isinstance(content, dict):
        with Pipeline(folder / "c.yaml", inline=True) as running:
            source_sha256 = running.spec.source_sha256
        dead_letter = {"item": "3", "stage": "draw", "error": "", "attempts": 1}
        dead_letter |= {"source_items": [3], "source_sha256": source_sha256}
        content = json.dumps(dead_letter | content)
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    output = run(str(folder / "c.yaml"), "--only-dead-letters", str(path), "--inline", expect=2)
    assert words in " ".join(output.split())


@pytest.mark.parametrize("inline", [True, False])
def test_selected_items_of_a_stream_before_a_batch_and_in_a_later_epoch(inline: bool):
    stream = {"uses": "tests.support.failing_stages.stream_of", "with": {"count": 12}}
    config = pipeline(stage("light_draws", name="draw"), source=stream, seed=9)
    with Pipeline(config, inline=True) as whole:
        expected = [[plain(item) for item in whole] for _ in range(2)][1]
    with Pipeline(config, inline=inline, only=[7, 2]) as selected:
        selected.set_epoch(1)
        assert [plain(item) for item in selected] == [expected[2], expected[7]]
    grouped = pipeline(stage("same"), batch(2), stage("light_draws", name="draw"), source=12)
    with Pipeline(grouped, inline=inline, only=range(4, 9)) as selected:
        assert [item["item"].tolist() for item in selected] == [[4, 5], [6, 7], [8]]


@pytest.mark.parametrize("uses", ["tests.support.failing_stages.stream_of", "stagepipe.sources.numbers"])
def test_a_selected_item_that_the_source_lacks_is_refused(uses: str):
    config = pipeline(stage("same"), source={"uses": uses, "with": {"count": 3}})
    with (
        Pipeline(config, inline=True, only=[1, 7]) as selected,
        pytest.raises(StagepipeError, match="an epoch of this source has 3 items, so there is no item 7"),
    ):
        list(selected)


@pytest.mark.parametrize("item", [-1, 10**20, True, "3"])
def test_a_selected_item_that_is_no_number_is_refused(item: Any):
    with pytest.raises(UsageError, match="is not the number of a source item"):
        Pipeline(pipeline(stage("same"), source=3), inline=True, only=[item])
