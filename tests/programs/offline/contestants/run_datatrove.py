"""Filters and deduplicates texts/ of the current folder into unique/ with datatrove, in its own environment."""

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.filters import C4QualityFilter, LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from work import note

FILES = 8
CONFIG = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)


def note_document(document):
    """Note a document by its id."""
    return note(document.id)


def run(name, pipeline, tasks):
    """Run a step with two workers; tasks that are complete are left out, as its logs say."""
    LocalPipelineExecutor(pipeline, tasks=tasks, workers=2, logging_dir=f"logs/{name}").run()


if __name__ == "__main__":
    run(
        "filter",
        [
            JsonlReader("texts", text_key="text", id_key="id"),
            LambdaFilter(note_document),
            C4QualityFilter(min_num_sentences=-1),
            JsonlWriter("filtered", output_filename="${rank}.jsonl", compression=None),
        ],
        FILES,
    )
    run("sign", [JsonlReader("filtered"), MinhashDedupSignature("signatures", config=CONFIG)], FILES)
    run("buckets", [MinhashDedupBuckets("signatures", "buckets", config=CONFIG)], CONFIG.num_buckets)
    run("cluster", [MinhashDedupCluster("buckets", "remove", config=CONFIG)], 1)
    run(
        "unique",
        [
            JsonlReader("filtered"),
            MinhashDedupFilter("remove"),
            JsonlWriter("unique", output_filename="${rank}.jsonl", compression=None),
        ],
        FILES,
    )
