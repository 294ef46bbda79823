"""Builds the pipeline of feature_extraction.yaml in Python.

From the root of the repository:

    python scripts/make_images.py
    python examples/feature_extraction/build_feature_extraction.py
"""

from feature_ops import Backbone

from stagepipe import defer, from_source, sinks, sources
from stagepipe.stages import Select, image, model

IMAGES = "data/images"
OUT = "runs/feature_extraction"

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", read=True, labels="folder"))
    .map_field("data", defer(image.Decode), name="decode")
    .map_field("data", defer(image.Resize, 64, fit="crop"), name="resize", fuse=True)
    .map_field(
        "data",
        defer(image.Normalize, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        name="normalize",
        fuse=True,
    )
    .map_field(
        "data",
        defer(model.Module, defer(Backbone, seed=17)),  # or one of torchvision.models
        name="extract",
        into="features",
        batch_size=32,
        threads=1,
    )
    .map(defer(Select, ["path", "label", "features"]), name="columns", fuse=True)
    .sink(defer(sinks.parquet, OUT, part_items=128))  # a row group
    .with_options(name="feature_extraction")
)

if __name__ == "__main__":
    builder.run(resume=True).show()
