"""Builds the pipeline of dataset_mixing.yaml in Python.

From the root of the repository:

    python scripts/make_documents.py
    python examples/dataset_mixing/build_dataset_mixing.py
"""

from stagepipe import defer, from_dataset, sinks, sources

DOCUMENTS = "data/documents"
OUT = "runs/dataset_mixing"
WEIGHTS = {"web": 0.5, "books": 0.3, "code": 0.2}

mix = defer(
    sources.mix,
    [defer(sources.jsonl, f"{DOCUMENTS}/{name}.jsonl") for name in WEIGHTS],
    weights=list(WEIGHTS.values()),
    until="all_exhausted",  # the few books are repeated
    shuffle=True,  # each collection, in a new order each time
)
builder = (
    from_dataset(mix, workers=2)  # reads the documents
    .sink(defer(sinks.jsonl, OUT, shard_items=1000, overwrite=True))
    .with_options(name="dataset_mixing", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
