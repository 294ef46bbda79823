"""Build the documentation site in site/, offline: `make docs`.

    python -m scripts.build_docs             # build; a broken link or heading is an error
    python -m scripts.build_docs --update    # first write the key tables into docs/reference/config.md
    python -m scripts.build_docs --serve     # show the site on http://localhost:8000

The pages in docs/ read well on the repository's web page unchanged. This script collects them in build/docs, adapts
them to the site, and runs Zensical (zensical.toml) on the copies:

- README.md becomes the home page; CONTRIBUTING.md, CHANGELOG.md and SECURITY.md become pages.
- A link to a file that is not a page (code, a config, an example) leads to the repository on the web.
- Between `<!-- tabs -->` and `<!-- end tabs -->`, the code blocks become tabs.
- Generated parts are made again. They are between `<!-- generated: NAME -->` and `<!-- end generated -->`. The tables
  of config keys come from the JSON Schema and are stored in docs/ (a test compares them). The command line comes from
  typer, whose releases format it differently, so it is filled in only when the site is built.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stagepipe.config import build_json_schema

ROOT = Path(__file__).parents[1]
STAGING = ROOT / "build" / "docs"
_TOP_LEVEL_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_GENERATED = re.compile(r"(?<=<!-- generated: )(.*?)( -->\n).*?(?=<!-- end generated -->)", re.DOTALL)
_COMMAND_LINE = "command line"
_TYPE_NAMES = {"object": "mapping", "array": "list", "boolean": "true, false", "string": "text"}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_TABS = re.compile(r"<!-- tabs -->\n(.*?)<!-- end tabs -->\n", re.DOTALL)
_TAB = re.compile(r"^```(\w+)\n.*?^```$", re.MULTILINE | re.DOTALL)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_TAB_LABELS = {"yaml": "YAML", "python": "Python", "sh": "Shell"}


def main() -> int:
    """Build or serve the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="rewrite the key tables of docs/ from the schema")
    parser.add_argument("--serve", action="store_true", help="show the site on http://localhost:8000")
    arguments = parser.parse_args()
    if arguments.update:
        update_pages()
    collect_pages(STAGING)
    return run_zensical("serve") if arguments.serve else run_zensical("build", "--strict", "--clean")


def run_zensical(*action: str) -> int:
    """Run Zensical on the collected pages. Show its output, a color per character, only if it fails or serves."""
    command = [sys.executable, "-m", "zensical", *action, "--config-file", str(ROOT / "zensical.toml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, check=False, text=True, capture_output="serve" not in action)
    if done.returncode:
        output = f"{done.stdout}\n{done.stderr}"
        print(_COLOR.sub("", output), file=sys.stderr)
    return done.returncode


def update_pages() -> None:
    """Write the generated parts that are stored in docs/."""
    for page in ROOT.glob("docs/**/*.md"):
        page.write_text(fill_generated_parts(page.read_text()))


def collect_pages(target: Path) -> None:
    """Copy all pages and pictures to `target`, adapted to the site."""
    shutil.rmtree(target, ignore_errors=True)
    files = site_files()
    for source, place in files.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            (target / place).write_text(adapt_page((ROOT / source).read_text(), source, files))
        else:
            shutil.copyfile(ROOT / source, target / place)


def site_files() -> dict[str, str]:
    """Return the place of each page and picture of the repository in the site. Both are relative paths."""
    in_docs = (path for path in sorted(ROOT.glob("docs/**/*")) if path.suffix in {".md", ".svg", ".png", ".css", ".js"})
    return _TOP_LEVEL_PAGES | {str(path.relative_to(ROOT)): str(path.relative_to(ROOT / "docs")) for path in in_docs}


def adapt_page(text: str, page: str, files: dict[str, str]) -> str:
    """Return the text of a page, adapted to the site. `files` has the place of each file in the site."""
    text = fill_generated_parts(text, at_build_time=True)
    parts = _FENCED.split(text)
    parts[::2] = (_LINK.sub(lambda link: _adapt_link(link, page, files), part) for part in parts[::2])
    return _TABS.sub(lambda tabs: "\n".join(_make_tabs(tabs[1])), "".join(parts))


def _adapt_link(link: re.Match[str], page: str, files: dict[str, str]) -> str:
    path, anchor = link[1], link[2] or ""
    if ":" in path:
        return link[0]
    target = os.path.normpath(os.path.join(os.path.dirname(page), path))  # noqa: PTH118, PTH120 - paths inside the site
    if target in files:
        return os.path.relpath(files[target], os.path.dirname(files[page])) + anchor  # noqa: PTH120
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    repository = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["repo_url"]
    return f"{repository}/{kind}/main/{target}{anchor}"


def _make_tabs(blocks: str) -> Iterator[str]:
    for block in _TAB.finditer(blocks):
        yield f'=== "{_TAB_LABELS[block[1]]}"\n'
        yield "".join(f"    {line}" if line.strip() else line for line in block[0].splitlines(keepends=True)) + "\n"


def fill_generated_parts(text: str, *, at_build_time: bool = False) -> str:
    """Return the page `text` with its generated parts filled in; the command line only `at_build_time`."""

    def fill(part: re.Match[str]) -> str:
        name = part[1]
        if name == _COMMAND_LINE:
            return part[1] + part[2] + _describe_commands() if at_build_time else part[0]
        return part[1] + part[2] + "\n" + _make_key_table(name.removeprefix("keys of ")) + "\n"

    return _GENERATED.sub(fill, text)


def _describe_commands() -> str:
    command = [sys.executable, "-m", "typer", "stagepipe.cli.app", "utils", "docs", "--name", "stagepipe"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return text.partition("\n")[2]  # the page has its own title


def _make_key_table(model: str) -> str:
    """Return the keys of a model of the schema as a Markdown table; `pipeline` is the whole config."""
    schema = build_json_schema()
    keys = schema if model == "pipeline" else schema["$defs"][model]
    required = set(keys.get("required", ()))
    rows = [
        f"| `{key}` | {', '.join(dict.fromkeys(_type_names(value)))} | {_default(value, required=key in required)} "
        f"| {value['description']} |"
        for key, value in keys["properties"].items()
    ]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def _type_names(schema: dict[str, Any]) -> Iterator[str]:
    if "${" in schema.get("pattern", "").replace("\\", ""):
        return  # every key takes a reference
    for inner in schema.get("anyOf", ()):
        yield from _type_names(inner)
    for value in schema.get("enum", [schema["const"]] if "const" in schema else []):
        yield f"`{value}`"
    if not schema.keys() & {"enum", "const"}:
        types = schema.get("type", ())
        names: list[str] = [types] if isinstance(types, str) else list(types)
        yield from (_TYPE_NAMES.get(name, name) for name in names if name != "null")
    if "$ref" in schema:
        yield "mapping"


def _default(schema: dict[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    match schema.get("default"):
        case None | [] | dict():
            return ""
        case bool(value):
            return str(value).lower()
        case value:
            return f"`{value}`"


if __name__ == "__main__":
    sys.exit(main())
