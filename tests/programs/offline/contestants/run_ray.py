"""Embeds images/ of the current folder into out/ with Ray Data, in its own environment."""

import os
from pathlib import Path

import ray
from work import Embedder


class Embed:
    """Called with batches of paths."""

    def __init__(self, folder):
        os.chdir(folder)
        self._embedder = Embedder()

    def __call__(self, batch):
        """Return the batch with its embeddings."""
        return {**batch, "embedding": self._embedder(list(batch["path"]))}


if __name__ == "__main__":
    # Two for the actors, which hold theirs for good, and one for the tasks that write: with two they wait without end.
    ray.init(num_cpus=3, include_dashboard=False, _temp_dir=os.environ["RAY_TMPDIR"], logging_level="ERROR")
    paths = [{"path": str(path)} for path in sorted(Path("images").glob("*.jpg"))]
    embedded = ray.data.from_items(paths, override_num_blocks=20).map_batches(
        Embed, fn_constructor_args=(str(Path.cwd()),), batch_size=32, compute=ray.data.ActorPoolStrategy(size=2)
    )
    embedded.write_parquet(str(Path("out").absolute()), mode="overwrite")
