"""Builds the pipeline of packed_tokens.yaml in Python.

From the root of the repository:

    python scripts/make_tokenizer.py
    python examples/packed_tokens/build_packed_tokens.py
"""

from stagepipe import defer, from_source, sinks, sources
from stagepipe.stages import text

TEXT = "data/text"
OUT = "runs/packed_tokens"
LENGTH = 256

builder = (
    from_source(defer(sources.files, f"{TEXT}/texts/*.txt", read=True, shuffle=True))
    .map_field(
        "data",  # the ids replace the bytes
        defer(text.Tokenize, f"{TEXT}/tokenizer.json", dtype="int32"),
        name="tokenize",
        batch_size=16,  # the tokenizer is fastest on lists
        env={"TOKENIZERS_PARALLELISM": "false"},
    )
    .map(defer(text.Pack, LENGTH, field="data", separator=0, segments=True), name="pack")
    .batch(64)
    .sink(defer(sinks.npz, OUT, overwrite=True))
    .with_options(name="packed_tokens", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
