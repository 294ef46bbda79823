"""The documentation is correct: its configs load and its examples run. So do those of `configs/` and `examples/`.

In the pages at the top level (README.md, CONTRIBUTING.md) and in docs/**/*.md
- a ```yaml block is a whole config, unless its first line begins with `# fragment`: then it must only be YAML;
- a ```python runnable block is a script that must exit with 0;
- a block whose first line is a comment with a file name (`# my_ops.py`, `# base.yaml`) is saved under that name next to
  the other blocks of its page, so that they can import or extend it;
- a link to a file of the repository, or to a heading of a page, must have a target.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

import stagepipe.config
from tests.support.paths import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
CONFIGS = sorted([*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("examples/**/*.yaml")])


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; `line` is the line of its fence."""

    page: Path
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def file_name(self) -> str | None:
        named = re.fullmatch(r"# ([\w-]+\.(py|ya?ml))", self.first_line.strip())
        return named and named[1]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(page, token.map[0] + 1, tuple(token.info.lower().split()), token.content)
        for token in MarkdownIt().parse(page.read_text())
        if token.type == "fence"
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
YAML_BLOCKS = [block for block in BLOCKS if block.info[:1] in {("yaml",), ("yml",)}]
FRAGMENTS = [block for block in YAML_BLOCKS if block.first_line.startswith("# fragment")]
WHOLE_CONFIGS = [block for block in YAML_BLOCKS if block not in FRAGMENTS]
RUNNABLE = [block for block in BLOCKS if block.info[:1] == ("python",) and "runnable" in block.info]


@pytest.fixture
def written(tmp_path):
    """Write a block to a folder with the named blocks of its page and the configs of the repository."""

    def write(block: Block, suffix: str) -> Path:
        if (ROOT / "configs").is_dir():
            shutil.copytree(ROOT / "configs", tmp_path / "configs")
        for other in BLOCKS:
            if other.page == block.page and other.file_name:
                (tmp_path / other.file_name).write_text(other.text)
        path = tmp_path / (block.file_name or f"block{suffix}")
        path.write_text(block.text)
        return path

    return write


@pytest.mark.parametrize("block", WHOLE_CONFIGS, ids=str)
def test_a_config_in_the_docs_loads(block, written):
    stagepipe.config.load(written(block, ".yaml"), [])


@pytest.mark.parametrize("block", FRAGMENTS, ids=str)
def test_a_fragment_in_the_docs_is_yaml(block):
    yaml.safe_load(block.text)


@pytest.mark.parametrize("block", RUNNABLE, ids=str)
def test_a_runnable_example_in_the_docs_runs(block, written):
    script = written(block, ".py")
    done = subprocess.run(
        [sys.executable, script], cwd=script.parent, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_config_of_the_repository_loads(path):
    stagepipe.config.load(path, [])


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_has_a_target(page):
    missing = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            missing.append(link)
    assert missing == []
