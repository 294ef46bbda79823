"""Make the documents of an example: three collections of unequal size, as JSON Lines.

    python scripts/make_documents.py --count 4000 --out data/documents --seed 17

Writes OUT/web.jsonl, OUT/books.jsonl and OUT/code.jsonl, with 70, 10 and 20 % of the documents. A line is an object
with `collection`, `number` and `text`. The same arguments make the same files; existing files are overwritten.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

SHARES = {"web": 0.7, "books": 0.1, "code": 0.2}
WORDS = ("array", "batch", "crop", "decode", "epoch", "field", "graph", "hop", "index", "join", "key", "label")
LENGTHS = (20, 200)  # words


def make(out: Path, count: int, seed: int) -> str:
    """Make the files; return one line about the result."""
    out.mkdir(parents=True, exist_ok=True)
    for name, share in SHARES.items():
        draw = random.Random(f"{seed}/{name}")
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(round(share * count)):
                text = " ".join(draw.choices(WORDS, k=draw.randint(*LENGTHS)))
                file.write(json.dumps({"collection": name, "number": number, "text": text}) + "\n")
    return f"{out}: made {count} documents in {len(SHARES)} collections"


def main() -> None:
    """Read the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path("data/documents"))
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    print(make(arguments.out, arguments.count, arguments.seed))


if __name__ == "__main__":
    main()
