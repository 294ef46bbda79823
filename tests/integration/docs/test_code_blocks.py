"""The documentation is correct: its configs load and its examples run.

In the pages at the top level (README.md, CONTRIBUTING.md), in examples/README.md and in docs/**/*.md
- a ```yaml block is a whole config and a ```python block a script that must exit with 0, unless the first line begins
  with `# fragment`: then it must only be YAML or Python;
- a block whose first line is a comment with a file name (`# my_ops.py`, `# base.yaml`) is saved under that name next to
  the other blocks of its page, so that they can import or extend it;
- a ```yaml and a ```python block between `<!-- tabs -->` and `<!-- end tabs -->` are the same pipeline: the script
  defines it as `pipeline`, and both yield the same items;
- a link to a file of the repository, or to a heading of a page, must have a target.

The blocks find `configs/` and some photographs in `data/images/` in their folder.
"""

import ast
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from markdown_it import MarkdownIt
from PIL import Image

import stagepipe.config
from tests.support.paths import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "examples/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
CONFIGS = sorted([*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("examples/**/*.yaml")])
SCRIPT_TIMEOUT_S = 220  # on a busy machine, five processes that import torch take more than a minute
SAME_ITEMS = """
import runpy
import sys

import numpy as np

import stagepipe


def as_arrays(value):
    if isinstance(value, dict):
        return {key: as_arrays(field) for key, field in value.items()}
    return value.numpy() if hasattr(value, "numpy") else value


for script, config in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    pipeline = runpy.run_path(script, run_name="__main__")["pipeline"]
    with pipeline.open(inline=True) as from_python, stagepipe.Pipeline(config, inline=True) as from_yaml:
        items = [as_arrays(item) for item in from_python]
        assert items, script
        np.testing.assert_equal(items, [as_arrays(item) for item in from_yaml], err_msg=script)
"""
"""Compares the pairs of a page, a script and a config each, in one process: some pages' scripts import torch."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; `line` is the line of its fence, `tabs` that of its `<!-- tabs -->` (0 without)."""

    page: Path
    line: int
    tabs: int
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def is_fragment(self) -> bool:
        return self.first_line.startswith("# fragment")

    @property
    def file_name(self) -> str | None:
        named = re.fullmatch(r"# ([\w-]+\.(py|ya?ml))", self.first_line.strip())
        return named and named[1]

    def __str__(self) -> str:
        return f"{name_page(self.page)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    blocks, tabs = [], 0
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "html_block" and "tabs -->" in token.content:
            tabs = 0 if "<!-- end tabs" in token.content else token.map[0] + 1
        elif token.type == "fence":
            blocks.append(Block(page, token.map[0] + 1, tabs, token.info.lower().strip(), token.content))
    return blocks


def only_defines(block: Block) -> bool:
    """Whether a script only imports packages and defines functions and classes: it needs no process of its own."""
    own_modules = "|".join(other.file_name.partition(".")[0] for other in BLOCKS if other.file_name)
    if re.search(rf"^(from|import) ({own_modules})\b", block.text, re.MULTILINE):
        return False
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return all(isinstance(statement, kinds) or is_constant(statement) for statement in ast.parse(block.text).body)


def is_constant(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or an assignment that calls nothing."""
    kinds = (ast.Expr, ast.Assign, ast.AnnAssign)
    return isinstance(statement, kinds) and not any(isinstance(node, ast.Call) for node in ast.walk(statement))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
FRAGMENTS = [block for block in BLOCKS if block.language in {"yaml", "python"} and block.is_fragment]
WHOLE_CONFIGS = [block for block in BLOCKS if block.language == "yaml" and not block.is_fragment]
SCRIPTS = [block for block in BLOCKS if block.language == "python" and not block.is_fragment]
PAIRS = [
    (config, script)
    for config in WHOLE_CONFIGS
    for script in SCRIPTS
    if config.tabs and (config.page, config.tabs) == (script.page, script.tabs)
]
ONLY_DEFINITIONS = [block for block in SCRIPTS if only_defines(block)]
OTHER_SCRIPTS = [block for block in SCRIPTS if block not in [*dict(PAIRS).values(), *ONLY_DEFINITIONS]]
PAGES_WITH_PAIRS = list(dict.fromkeys(config.page for config, _ in PAIRS))


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """A few small JPEG files, in a folder for each label."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number in range(20):
            pixels = rng.integers(0, 256, (40 + number, 60, 3), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number:05}.jpg")
    return folder


@pytest.fixture
def written(tmp_path, photographs, monkeypatch):
    """Write a block to a folder with what its page expects there."""
    # A test of this process that ran a config of these folders has put them on the path, before the block's folder.
    others = {str(path.parent) for path in CONFIGS}
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in others])

    def write(block: Block) -> Path:
        shutil.copytree(ROOT / "configs", tmp_path / "configs", dirs_exist_ok=True)
        shutil.copytree(photographs, tmp_path / "data" / "images", dirs_exist_ok=True)
        for other in BLOCKS:
            if other.page == block.page and other.file_name:
                (tmp_path / other.file_name).write_text(other.text)
        path = tmp_path / (block.file_name or f"line_{block.line}.{block.language}")
        path.write_text(block.text)
        return path

    return write


def run_script(script: Path, *arguments: str | Path) -> None:
    command = [sys.executable, script, *arguments]
    done = subprocess.run(
        command, cwd=script.parent, capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_file_names_of_a_page_are_unique():
    named = [(block.page, block.file_name) for block in BLOCKS if block.file_name]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("block", WHOLE_CONFIGS, ids=str)
def test_a_config_in_the_docs_loads(block, written):
    stagepipe.config.load(written(block), [])


@pytest.mark.parametrize("block", FRAGMENTS, ids=str)
def test_a_fragment_in_the_docs_can_be_parsed(block):
    (yaml.safe_load if block.language == "yaml" else ast.parse)(block.text)


@pytest.mark.timeout(SCRIPT_TIMEOUT_S + 20)
@pytest.mark.parametrize("block", OTHER_SCRIPTS, ids=str)
def test_a_script_in_the_docs_runs(block, written):
    run_script(written(block))


@pytest.mark.parametrize("block", ONLY_DEFINITIONS, ids=str)
def test_definitions_in_the_docs_are_without_error(block, written):
    runpy.run_path(str(written(block)), run_name="block_of_docs")


@pytest.mark.timeout(SCRIPT_TIMEOUT_S + 20)
@pytest.mark.parametrize("page", PAGES_WITH_PAIRS, ids=name_page)
def test_yaml_and_python_side_by_side_yield_the_same_items(page, written, tmp_path):
    checked = tmp_path / "same_items.py"
    checked.write_text(SAME_ITEMS)
    pairs = [(script, config) for config, script in PAIRS if config.page == page]
    run_script(checked, *(written(block) for pair in pairs for block in pair))


def test_there_are_pipelines_in_both_forms():
    assert len(PAIRS) >= 15


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    tokens = MarkdownIt().parse(page.read_text())
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[str]:
    """The targets of a page's links and pictures that are in the repository."""
    tokens = [child for token in MarkdownIt().parse(page.read_text()) for child in token.children or ()]
    targets = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in tokens]
    return [target for target in targets if target and "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_link_of_a_page_has_a_target(page):
    missing = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            missing.append(link)
    assert missing == []
