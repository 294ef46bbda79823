"""What the documentation shows is true: its configs load, its examples run. So do those of `configs/` and `examples/`.

In README.md and docs/**/*.md
- a ```yaml block is a whole config, unless its first line begins with `# fragment`: then it must only be YAML;
- a ```python runnable block is a script, which must exit with 0;
- a block whose first line is a comment with a file name (`# my_ops.py`, `# base.yaml`) is kept under that name beside
  the other blocks of its page, so that they can import it or extend it.
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

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
CONFIGS = sorted([*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("examples/**/*.yaml")])


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; `line` is that of its fence."""

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
    """Writes a block to a folder that holds the named blocks of its page and the repository's configs."""

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
