"""The documentation site: complete, without broken links, and true to the schema, the command line and the package."""

import importlib
import inspect
import re
import sys
import tomllib

import pytest

from scripts import build_docs
from scripts.build_docs import adapt_page, collect_pages, fill_generated_parts, run_zensical, site_files
from scripts.doctest_fences import fence_examples
from stagepipe.config import build_json_schema
from tests.support.paths import ROOT

API_PAGES = "".join(path.read_text() for path in ROOT.glob("docs/reference/api/*.md"))
INTERNAL = {
    "stagepipe": {"SKIP", "Skip", "__version__"},  # described in words
    "stagepipe.torch": set(),
    "stagepipe.sources": set(),
    "stagepipe.sinks": {
        "OPEN_PREFIX",
        "OWN_PREFIX",
        "PART_PREFIX",
        "MeasuredPartRecord",  # the probe of `stagepipe plan`
        "MeasuredSink",
        "Part",  # between stages
        "PartPlace",
        "Parts",
    },
    "stagepipe.stages": {
        "Fetch",  # the dataset source adds it, or FetchShard
        "FetchShard",
        "NotStackableError",  # how a dataset's samples travel to Batch
        "Rows",
        "make_rows",
        "OrderPointStage",  # reference/stages.md describes it
        "count_items_per_output",
        "declares_order_point",
        "require_order_point",
    },
}


def read(page):
    return (ROOT / "docs" / f"{page}.md").read_text()


def adapted(text, page="docs/how-to/tune.md"):
    return adapt_page(text, page, site_files())


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda path: path.name)
def test_the_key_tables_are_those_of_the_schema(page):
    assert fill_generated_parts(page.read_text()) == page.read_text(), "run `make docs`"


def test_every_key_of_a_config_is_described():
    schema = build_json_schema()
    keys = {key for model in (schema, *schema["$defs"].values()) for key in model["properties"]}
    described = set(re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs/reference/config.md").read_text(), re.MULTILINE))
    assert described == keys


def test_every_command_and_option_is_described():
    page = fill_generated_parts((ROOT / "docs/reference/command-line.md").read_text(), at_build_time=True)
    assert re.findall(r"^## `stagepipe (\w+)`", page, re.MULTILINE) == [
        "init",
        "run",
        "validate",
        "plan",
        "tune",
        "top",
        "report",
        "list",
        "doctor",
        "bench",
        "schema",
    ]
    assert "--only-dead-letters" in page


@pytest.mark.parametrize("module", INTERNAL)
def test_every_public_name_is_in_the_api_reference(module):
    described = set(re.findall(rf"^::: {re.escape(module)}\.(\w+)$", API_PAGES, re.MULTILINE))
    names = set(importlib.import_module(module).__all__) - INTERNAL[module]
    aliases = {name for name in names if name.islower() and inspect.isclass(getattr(sys.modules[module], name))}
    assert names - aliases == described


def test_the_navigation_has_every_page():
    nav = re.findall(r'"([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text().partition("[project.theme]")[0])
    assert sorted(nav) == sorted(place for place in site_files().values() if place.endswith(".md"))


def test_the_list_of_pages_has_every_page():
    listed = (ROOT / "docs" / "contents.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    only_on_the_site = {page for page in pages if page.startswith("reference/api/")} | {"reference/command-line.md"}
    assert {page for page in pages - only_on_the_site - {"contents.md"} if f"({page})" not in listed} == set()


def test_the_figures_of_which_tool_are_those_of_the_measured_pages():
    figures = re.findall(r"[\d.]+ \[[^]]+\]|[\d.,]+\d(?= items/s| µs| MB)|(?<=stagepipe )[\d.,]*\d", read("which-tool"))
    measured = "".join(read(page) for page in ("../README", "peers", "measured", "programs"))
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in measured] == []


def test_every_question_of_the_contents_has_an_answer_in_a_page():
    questions = re.findall(r"^\| (?!you)[^|]+ \| (.+) \|$", read("contents").partition("## Where")[2], re.MULTILINE)
    assert len(questions) >= 40
    assert all(re.search(r"\]\([^)]+\.md(#[^)]+)?\)", answer) for answer in questions)


def test_a_link_leads_to_the_page_in_the_site_or_to_the_repository():
    repository = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["repo_url"]
    assert adapted("[a](../reference/plan.md#x)") == "[a](../reference/plan.md#x)"
    assert adapted("[a](../../README.md)") == "[a](../index.md)"
    assert adapted("[a](docs/how-to/tune.md)", "README.md") == "[a](how-to/tune.md)"
    assert adapted("![a](docs/pictures/report.svg)", "README.md") == "![a](pictures/report.svg)"
    assert adapted("[a](../../configs)") == f"[a]({repository}/tree/main/configs)"
    assert adapted("[a](../../Makefile)") == f"[a]({repository}/blob/main/Makefile)"
    assert adapted("[a](https://example.org/x.md)") == "[a](https://example.org/x.md)"
    assert adapted("```\n[a](../../Makefile)\n```") == "```\n[a](../../Makefile)\n```"


def test_code_blocks_become_tabs():
    tabs = "<!-- tabs -->\n\n```yaml\na: 1\n```\n\n```python\na = 1\n```\n\n<!-- end tabs -->\n"
    expected = '=== "YAML"\n\n    ```yaml\n    a: 1\n    ```\n\n=== "Python"\n\n    ```python\n    a = 1\n    ```\n'
    assert adapted(tabs) == expected


def test_the_examples_of_a_docstring_become_code():
    docstring = "Add.\n\n>>> 1 + 1  # doctest: +SKIP\n2\n\nMore:\n    >>> for n in []:\n    ...     n"
    expected = (
        "Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore:\n    ```pycon\n    >>> for n in []:\n    ...     n\n    ```"
    )
    assert fence_examples(docstring) == expected


def test_a_broken_link_fails_the_build(tmp_path, monkeypatch, capfd):
    (tmp_path / "zensical.toml").write_text((ROOT / "zensical.toml").read_text())
    monkeypatch.setattr(build_docs, "ROOT", tmp_path)
    pages = tmp_path / "build" / "docs"
    pages.mkdir(parents=True)
    (pages / "index.md").write_text("# Home\n\n[gone](gone.md)\n")
    assert run_zensical("build", "--strict") != 0
    assert "gone.md" in capfd.readouterr().err


def test_pages_of_a_removed_source_do_not_stay(tmp_path):
    (tmp_path / "old.md").write_text("# Old\n")
    collect_pages(tmp_path)
    assert not (tmp_path / "old.md").exists()
    assert (tmp_path / "index.md").read_text().startswith("# stagepipe")
