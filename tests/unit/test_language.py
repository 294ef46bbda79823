"""No type name means two things. docs/style.md has the rules for prose."""

import ast
import collections

from tests.support.paths import ROOT


def test_every_type_name_is_unique_in_the_package():
    homes = collections.defaultdict(list)
    for path in sorted((ROOT / "stagepipe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert len(homes) > 200
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
