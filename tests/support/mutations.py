"""Mutates configs by a seed, at the level of tokens, lines or bytes."""

from __future__ import annotations

import random
import re

from tests.support.paths import ROOT as _ROOT

CORPUS = [
    path.read_text(encoding="utf-8")
    for path in (
        *sorted((_ROOT / "configs").glob("*.yaml")),
        *sorted((_ROOT / "examples").rglob("*.yaml")),
        _ROOT / "tests/unit/config/example.yaml",
    )
]
_FRAGMENTS = [
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


def _mutate_tokens(text: str, rnd: random.Random) -> str:
    tokens = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(rnd.randint(1, 6)):
        index = rnd.randrange(len(tokens))
        tokens[index] = rnd.choice([rnd.choice(_FRAGMENTS), rnd.choice(tokens), tokens[index] * 2])
    return "".join(tokens)


def _mutate_lines(text: str, rnd: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(rnd.randint(1, 4)):
        index = rnd.randrange(len(lines))
        other = rnd.randrange(len(lines))
        edit = rnd.randrange(5)
        if edit == 0 and len(lines) > 1:
            del lines[index]
        elif edit == 1:
            lines.insert(index, lines[other])
        elif edit == 2:
            lines[index], lines[other] = lines[other], lines[index]
        elif edit == 3:
            lines[index] = " " * rnd.randint(1, 5) + lines[index] if rnd.random() < 0.5 else lines[index].lstrip()
        else:
            lines.insert(index, rnd.choice(rnd.choice(CORPUS).splitlines(keepends=True)))
    return "".join(lines)


def _mutate_bytes(text: str, rnd: random.Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(rnd.randint(1, 8)):
        position = rnd.randrange(len(data))
        edit = rnd.randrange(4)
        if edit == 0:
            data[position] ^= 1 << rnd.randrange(8)
        elif edit == 1:
            del data[position : position + rnd.randint(1, 20)]
        elif edit == 2:
            data[position:position] = rnd.randbytes(rnd.randint(1, 4))
        else:
            data[position:position] = data[max(0, position - rnd.randint(1, 60)) : position]
        data = data or bytearray(b"\n")
    return bytes(data)


def mutated(seed: int) -> bytes:
    """Return a mutated config, the same for the same seed."""
    rnd = random.Random(seed)
    text = rnd.choice(CORPUS)
    result = rnd.choice([_mutate_tokens, _mutate_lines, _mutate_bytes])(text, rnd)
    return result if isinstance(result, bytes) else result.encode(errors="replace")
