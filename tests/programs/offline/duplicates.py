"""Texts without those of poor quality and without near duplicates: stagepipe beside datatrove."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.programs.offline.contest import (
    CONTESTANTS,
    STAGEPIPE,
    Output,
    Program,
    count_notes,
    find_version,
    hold_contest,
    is_stagepipe_worker,
    name_stagepipe,
)
from tests.programs.sources import find_python

JOB = "texts: a quality filter, near duplicates removed"
GROUPS = 1000
_FILES = 8
_SEED = 17
_WORDS = 240


def make_texts() -> Iterator[tuple[str, str]]:
    """Yield (id, text): of each group an original and up to 3 copies with one word changed, or a text of poor quality.

    The id is `group-copy`, or `bad-group`. The Jaccard similarity of an original and its copy is 0.95 (5 words of 240),
    that of texts of different groups 0.
    """
    generator = random.Random(_SEED)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    vocabulary = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(5000)]
    for group in range(GROUPS):
        words = generator.choices(vocabulary, k=_WORDS)
        if generator.random() < 0.08:
            yield f"bad-{group}", f"lorem ipsum {_lay_out(words)}"
            continue
        yield f"{group}-0", _lay_out(words)
        for copy in range(1, 1 + generator.choice([0] * 7 + [1, 2, 3])):
            changed = list(words)
            changed[generator.randrange(_WORDS)] = "changed"
            yield f"{group}-{copy}", _lay_out(changed)


def _lay_out(words: Sequence[str]) -> str:
    return "\n".join(" ".join(words[start : start + 30]) + "." for start in range(0, len(words), 30))


def write_texts(folder: Path) -> None:
    """Write the texts in a random order to files of JSON lines."""
    texts = list(make_texts())
    random.Random(_SEED).shuffle(texts)
    (folder / "texts").mkdir()
    for number in range(_FILES):
        lines = (json.dumps({"id": name, "text": text}) for name, text in texts[number::_FILES])
        (folder / "texts" / f"{number:03d}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def read_unique(folder: Path) -> Output:
    """Return the groups that are left, a row for each text."""
    rows, unreadable = [], []
    for path in sorted((folder / "unique").glob("*.jsonl")):
        try:
            rows += [(json.loads(line)["id"].rpartition("-")[0], "") for line in path.read_text().splitlines()]
        except ValueError:
            unreadable.append(path.name)
    return Output(rows=rows, unreadable=unreadable)


def make_programs() -> list[Program]:
    """Return the contestants. Each finds `texts/` in its folder."""
    python = find_python("datatrove", ["'datatrove[io,processing]'", "spacy"])
    run = [*STAGEPIPE, "run", "--quiet", "--resume"]
    return [
        Program(
            name=name_stagepipe(),
            commands=[
                [*run, str(CONTESTANTS / "sign.yaml")],
                [sys.executable, str(CONTESTANTS / "find_duplicates.py")],
                [*run, str(CONTESTANTS / "unique.yaml")],
            ],
            read=read_unique,
            is_worker=is_stagepipe_worker,
        ),
        Program(
            name=f"datatrove {find_version(python, 'datatrove')}",
            commands=[[str(python), str(CONTESTANTS / "run_datatrove.py")]],
            read=read_unique,
            is_worker=lambda line: "forkserver" in line,
        ),
    ]


def measure(**options: Any) -> Sequence[dict[str, str]]:
    """Hold the contest and return its rows."""
    names = [name for name, _ in make_texts()]
    groups = {name.partition("-")[0] for name in names if not name.startswith("bad")}
    results = hold_contest(
        make_programs(),
        prepare=write_texts,
        count_calls=count_notes,
        items=len(names),
        has_unique_keys=False,  # a group that is left twice is what the row says
        **options,
    )
    rows = []
    for result in results:
        kept = Counter(group for group, _ in result.output.rows)
        text = f"{len(kept)} of {len(groups)} groups kept, {sum(kept.values()) - len(kept)} duplicates left"
        if bad := kept["bad"]:
            text += f", {bad} bad texts left"
        rows.append({"job": JOB, "rows": text, **result.make_row(len(names))})
    return rows
