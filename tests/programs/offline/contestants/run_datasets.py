"""Embeds images/ of the current folder into out/ with Hugging Face datasets, in its own environment."""

import json
from pathlib import Path

from datasets import load_dataset
from work import Embedder

_embedder = None


def embed(rows):
    """Add the embeddings of a batch of paths; the network is made once a process."""
    global _embedder  # noqa: PLW0603 - `map` takes a function, and forks it
    _embedder = _embedder or Embedder()
    return {"embedding": _embedder(rows["path"])}


if __name__ == "__main__":
    if not Path("paths.jsonl").exists():
        lines = (json.dumps({"path": str(path)}) + "\n" for path in sorted(Path("images").glob("*.jpg")))
        Path("paths.jsonl").write_text("".join(lines))
    paths = load_dataset("json", data_files="paths.jsonl", split="train", cache_dir="cache")
    Path("out").mkdir(exist_ok=True)
    paths.map(embed, batched=True, batch_size=32, num_proc=2).to_parquet("out/000.parquet")
