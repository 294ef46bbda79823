"""Embeds images/ of the current folder into out/ with Daft, in its own environment."""

from pathlib import Path

import daft
from work import EMBEDDING_SIZE, Embedder


@daft.udf(return_dtype=daft.DataType.list(daft.DataType.float32()), batch_size=32, concurrency=2)
class Embed:
    """Called with a column of paths."""

    def __init__(self):
        self._embedder = Embedder()

    def __call__(self, paths):
        """Return a list of EMBEDDING_SIZE numbers for each."""
        rows = self._embedder(paths.to_pylist())
        assert rows.shape[1] == EMBEDDING_SIZE
        return rows.tolist()


if __name__ == "__main__":
    frame = daft.from_pydict({"path": sorted(map(str, Path("images").glob("*.jpg")))})
    frame.with_column("embedding", Embed(daft.col("path"))).write_parquet("out", write_mode="overwrite")
