"""The project's words: no type name means two things, and the words that the glossary replaced do not return."""

import ast
import collections
import re

from tests.support.paths import ROOT

REPLACED = re.compile(r"\b(?:mend(?:s|ed|ing)?|anew|whoever|foret(?:old|ell|ells|elling)|in vain)\b", re.IGNORECASE)
PROSE = [
    *(path for folder in ("stagepipe", "examples", "scripts", "benchmarks") for path in (ROOT / folder).rglob("*.py")),
    *(path for path in (ROOT / "tests").rglob("*.py") if path.name != "test_language.py"),
    *(ROOT / "docs").rglob("*.md"),
    *ROOT.glob("*.md"),
    *(ROOT / "configs").glob("*.*"),
    *(ROOT / "examples").rglob("*.yaml"),
]


def test_replaced_words_do_not_return():
    found = {str(path.relative_to(ROOT)): REPLACED.findall(path.read_text(encoding="utf-8")) for path in PROSE}
    assert len(found) > 400
    assert {path: words for path, words in found.items() if words} == {}


def test_every_type_name_is_unique_in_the_package():
    homes = collections.defaultdict(list)
    for path in sorted((ROOT / "stagepipe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert len(homes) > 200
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_a_replaced_word_is_recognized():
    assert REPLACED.search("Whoever feeds it begins anew")
    assert not REPLACED.search("amendment, recommend")
