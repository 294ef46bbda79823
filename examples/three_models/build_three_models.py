"""Builds the pipeline of three_models.yaml in Python, and prints the memory of each process.

From the root of the repository:

    python scripts/make_images.py
    python examples/three_models/build_three_models.py
"""

from model_ops import Scores

from stagepipe import defer, from_source, sinks, sources
from stagepipe.stages import Drop, image, model

IMAGES = "data/images"
OUT = "runs/three_models"
WIDTH = 3072  # a model of this width has 76 MB

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", read=True))
    .map_field("data", defer(image.Decode), name="decode")
    .map_field("data", defer(image.Resize, 32, fit="crop"), name="resize", fuse=True)
    .map_field("data", defer(image.Normalize, mean=0.5, std=0.5), name="normalize", fuse=True)
)
for seed, name in enumerate(["scene", "style", "quality"], start=1):
    module = defer(model.Module, defer(Scores, seed=seed, width=WIDTH))
    builder = builder.map_field("data", module, name=name, into=name, batch_size=64, threads=1)
builder = (
    builder.map(defer(Drop, ["data"]), name="drop_image", fuse=True)
    .sink(defer(sinks.jsonl, OUT, overwrite=True))
    .with_options(name="three_models")
)

if __name__ == "__main__":
    report = builder.run()
    report.show()
    for stage in report.stages:
        if stage.pss_bytes:  # memory that n processes share counts as 1/n in each
            print(f"{stage.name:10}{stage.pss_bytes / 1e6:6.0f} MB")
    print(f"{'total':10}{sum(stage.pss_bytes for stage in report.stages) / 1e6:6.0f} MB")
