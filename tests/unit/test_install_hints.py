"""What users are told to install: packages with the bounds of pyproject.toml, never the other project `stagepipe`."""

import re
import shlex
import tomllib

import pytest

from stagepipe.core import DISTRIBUTION, install_command
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?([<>=!~].*?)?(?:\s*;.*)?")
HINT = re.compile(r"\bpip install ((?:'[^'\n]+'|\"[^\"\n]+\"|[^\s`)\"'#]+|[ ])+)")
TOLD = [
    *(path for folder in ("stagepipe", "scripts", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "docs").rglob("*.json"),
    *ROOT.glob("*.md"),
    *(
        path
        for folder in (".github", "deploy", "configs")
        for path in (ROOT / folder).rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    ),
]


def split(requirement):
    return REQUIREMENT.fullmatch(requirement).groups()


def bounds():
    """The lower bounds that users may be told, by package."""
    found = {}
    for extra in [PROJECT["dependencies"], *(EXTRAS[name] for name in EXTRAS if name not in {"check", "docs"})]:
        for package, bound in map(split, extra):
            found.setdefault(package, set()).add((bound or "").partition(",")[0])
    return found


def find_faults(text):
    known = bounds()
    for hint in HINT.findall(text):
        for word in shlex.split(hint):
            if "{" in word:  # a placeholder
                continue
            if re.match(r"stagepipe\b(?!-ml)", word):
                yield f"{word}: another project"
            elif re.fullmatch(r"[A-Za-z][\w.-]*(\[[\w,]+\])?([<>=~!].*)?", word):
                package, bound = split(word)
                if package in known and (bound or "").partition(",")[0] not in known[package]:
                    yield f"{word}: {known[package]}"


def test_hints_have_the_bounds_of_the_project():
    faults = {str(path.relative_to(ROOT)): list(find_faults(path.read_text())) for path in TOLD}
    assert len(faults) > 400
    assert {path: found for path, found in faults.items() if found} == {}


@pytest.mark.parametrize(
    "text",
    ["pip install 'stagepipe[parquet]'", "`pip install stagepipe`", "pip install pyarrow", "pip install 'pyarrow>=2'"],
)
def test_a_wrong_hint_is_found(text):
    assert len(list(find_faults(text))) == 1


@pytest.mark.parametrize(
    "text", ["pip install 'pyarrow>=15'", f"pip install '{DISTRIBUTION}[parquet]'", "pip install -e '.[test]' spacy"]
)
def test_a_right_hint_is_not(text):
    assert list(find_faults(text)) == []


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"check", "examples", "test"}))
def test_a_missing_extra_is_told_as_its_packages(extra):
    told = shlex.split(install_command(extra).removeprefix("pip install "))
    assert {split(word)[0] for word in told} == {split(requirement)[0] for requirement in EXTRAS[extra]}
    assert all(word.count(">=") == 1 for word in told)


def test_one_package_of_an_extra():
    assert install_command("ray", "ray") == "pip install 'ray<2.64,>=2.60'"
    assert install_command("bench", "dora-rs") == "pip install 'dora-rs>=1.1'"


def test_the_distribution_is_that_of_the_project():
    assert PROJECT["name"] == DISTRIBUTION
