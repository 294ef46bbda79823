"""Every broken config in `broken/` is reported at its location, with a hint, without a traceback, within seconds.

`golden/` holds the full output for each; `pytest tests/unit/config --update-goldens` writes it again.
"""

import re
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from stagepipe.cli.validate import schema, validate

BROKEN = Path(__file__).parent / "broken"
CASES = sorted(BROKEN.glob("*.yaml"))
HEAVY_PACKAGES = ("torch", "torchvision", "transformers")


@pytest.fixture(scope="module")
def app():
    app = typer.Typer()
    app.command()(validate)
    app.command()(schema)
    return app


def expected(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# expect: ") for line in lines if line.startswith("# expect: ")]


def test_there_are_at_least_32():
    assert len(CASES) >= 32


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_is_reported_with_location_and_hint(app, path, monkeypatch):
    monkeypatch.delenv("STAGEPIPE_SURELY_NOT_SET", raising=False)
    heavy_before = {name for name in HEAVY_PACKAGES if name in sys.modules}
    start = time.perf_counter()
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert time.perf_counter() - start < 5
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert re.search(r"\.(yaml|py):\d+:\d+: ", result.stderr)
    for fragment in expected(path):
        assert fragment in result.stderr
    assert {name for name in HEAVY_PACKAGES if name in sys.modules} == heavy_before


def test_a_missing_file_suggests_a_similar_name(app):
    result = CliRunner().invoke(app, ["validate", str(BROKEN / "yaml_tabs.yaml")])
    assert result.exit_code == 2
    assert "no such file" in result.stderr
    assert "yaml_tab.yaml" in result.stderr


def test_a_valid_config_prints_one_line(app, tmp_path):
    config = tmp_path / "ok.yaml"
    config.write_text("name: ok\nsource: {uses: itertools.repeat, with: {object: 1}}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", str(config), "window=8"])
    assert (result.exit_code, result.stdout) == (0, "ok: ok: source\n")


def test_the_schema_is_printed_or_written(app, tmp_path):
    printed = CliRunner().invoke(app, ["schema"])
    written = CliRunner().invoke(app, ["schema", "--out", str(tmp_path / "s.json")])
    assert (printed.exit_code, written.exit_code) == (0, 0)
    assert (tmp_path / "s.json").read_text(encoding="utf-8") == printed.stdout


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_output_equals_its_golden_file(app, golden, path, monkeypatch):
    monkeypatch.delenv("STAGEPIPE_SURELY_NOT_SET", raising=False)
    monkeypatch.chdir(BROKEN)
    output = CliRunner().invoke(app, ["validate", path.name]).output
    # The names in a torchvision module depend on its version; the list of all keys would change with each new one.
    output = re.sub(r"it has `AutoAugmentPolicy`.*", "it has <names of torchvision>", output)
    golden(f"{path.stem}.txt", re.sub(r"known keys: allow_none, .*", "known keys: <keys of a source>", output))


def test_every_golden_file_has_its_config():
    assert {path.stem for path in CASES} == {path.stem for path in (BROKEN.parent / "golden").glob("*.txt")}
