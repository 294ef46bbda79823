"""Make a small tokenizer and texts for it, from the docstrings of Python's standard library, without a network.

    python scripts/make_tokenizer.py --out data/text

Writes OUT/tokenizer.json (byte-level BPE, 2,000 tokens) and OUT/texts/<module>.txt, one file per module. The same
version of Python makes the same files. A second call finds them and does nothing. Requires `pip install
'tokenizers>=0.20'`.
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
from pathlib import Path

VOCABULARY = 2_000
MAX_TEXT_CHARS = 20_000  # longer docstrings add nothing to a vocabulary this small


def docstrings(path: Path) -> str:
    """Return all docstrings of a Python file."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(text for text in found if text)[:MAX_TEXT_CHARS]


def write_texts(folder: Path) -> list[str]:
    """Write one text file per standard-library module with docstrings; return their paths, sorted."""
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
    """Train a byte-level BPE tokenizer like GPT-2's, with a padding token."""
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


def make(out: Path) -> str:
    """Write the texts and train the tokenizer, unless it exists; return one line about the result."""
    target = out / "tokenizer.json"
    if target.is_file():  # the tokenizer is written last
        return f"{target} is there already"
    texts = write_texts(out / "texts")
    train(texts, target)
    return f"{target}: made {VOCABULARY} tokens from {len(texts)} texts"


def main() -> None:
    """Read the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("data/text"))
    print(make(parser.parse_args().out))


if __name__ == "__main__":
    main()
