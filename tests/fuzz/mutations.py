"""Configs, mutated by a seed: at the level of tokens, of lines, of bytes."""

from __future__ import annotations

import random
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
CORPUS = [
    path.read_text(encoding="utf-8")
    for path in (*sorted((_ROOT / "configs").glob("*.yaml")), _ROOT / "tests/config/example.yaml")
]
_WORDS = [
    *("", "{", "}", "[", "]", ": ", "- ", "${", "${vars.size}", "${env:HOME}", "*a", "&a ", "<<: ", "null", "0", "-1"),
    *("1e400", "no", "'", '"', "\t", "\n", "!!int ", "!!python/object:os.system ", "uses", "with", "__main__", "os"),
    *(".", "%", "|", "> ", "\x00", "é", "\ud7ff", "9" * 4500, "stages: 1\n", "extends: /dev/zero\n", ".inf", ".nan"),
    *("extends: pipeline.yaml\n", "name: ${name}\n", "vars: {a: ${vars.a}}\n", "? ", "---\n", "...\n", "2001-01-01"),
    *(
        "0x_",
        "1_000",
        "4GiB",
        "-3s",
        "[" * 300,
        "{a: " * 200,
        "a." * 3000,
        "&x [*x]",
        "\u2028",
        "stagepipe.stages.Batch",
    ),
    *("./my_ops.py:mix", "/", "..", "~", "lambda: 0", "numpy.zeros", "stagepipe.sources.files", "true", "1%", "20ms"),
]


def _tokens(text: str, rnd: random.Random) -> str:
    tokens = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(rnd.randint(1, 6)):
        at = rnd.randrange(len(tokens))
        tokens[at] = rnd.choice([rnd.choice(_WORDS), rnd.choice(tokens), tokens[at] * 2])
    return "".join(tokens)


def _lines(text: str, rnd: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(rnd.randint(1, 4)):
        at, other = rnd.randrange(len(lines)), rnd.randrange(len(lines))
        edit = rnd.randrange(5)
        if edit == 0 and len(lines) > 1:
            del lines[at]
        elif edit == 1:
            lines.insert(at, lines[other])
        elif edit == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif edit == 3:
            lines[at] = " " * rnd.randint(1, 5) + lines[at] if rnd.random() < 0.5 else lines[at].lstrip()
        else:
            lines.insert(at, rnd.choice(rnd.choice(CORPUS).splitlines(keepends=True)))
    return "".join(lines)


def _bytes(text: str, rnd: random.Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(rnd.randint(1, 8)):
        at = rnd.randrange(len(data))
        edit = rnd.randrange(4)
        if edit == 0:
            data[at] ^= 1 << rnd.randrange(8)
        elif edit == 1:
            del data[at : at + rnd.randint(1, 20)]
        elif edit == 2:
            data[at:at] = rnd.randbytes(rnd.randint(1, 4))
        else:
            data[at:at] = data[max(0, at - rnd.randint(1, 60)) : at]
        data = data or bytearray(b"\n")
    return bytes(data)


def mutated(seed: int) -> bytes:
    """One config, damaged."""
    rnd = random.Random(seed)
    text = rnd.choice(CORPUS)
    made = rnd.choice([_tokens, _lines, _bytes])(text, rnd)
    return made if isinstance(made, bytes) else made.encode(errors="replace")
