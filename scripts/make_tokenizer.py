"""Make a small tokenizer and texts to use it on, from the docstrings of Python's own library, without a network.

    python scripts/make_tokenizer.py --out data/text

Writes OUT/tokenizer.json (byte-level BPE, 2,000 tokens) and OUT/texts/<module>.txt, one file a module. The same Python
gives the same files; a second call finds them there and does nothing. Needs `pip install tokenizers`.
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
from pathlib import Path

VOCABULARY = 2_000
LONGEST = 20_000  # characters of a text: docstrings beyond that teach a small vocabulary nothing new


def docstrings(path: Path) -> str:
    """All docstrings of a Python file."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(text for text in found if text)[:LONGEST]


def write_texts(folder: Path) -> list[str]:
    """One text file for each module of the standard library that has docstrings; their paths, sorted."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for module in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = docstrings(module)
        if text:
            path = folder / f"{module.stem}.txt"
            path.write_text(text, encoding="utf-8")
            written.append(str(path))
    return written


def train(texts: list[str], out: Path) -> None:
    """A byte-level BPE tokenizer, as GPT-2 has one, with a padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(texts, trainer)
    tokenizer.save(str(out))


def main() -> None:
    """Read the command line, write the texts and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("data/text"))
    out = parser.parse_args().out
    target = out / "tokenizer.json"
    if target.is_file():  # written last
        print(f"{target} is there already")
        return
    texts = write_texts(out / "texts")
    train(texts, target)
    print(f"{target}: {VOCABULARY} tokens, learned from {len(texts)} texts")


if __name__ == "__main__":
    main()
