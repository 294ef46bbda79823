"""tf.data: the images by TensorFlow's own decoding and resizing, whose pixels differ. All other steps are Python's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from benchmarks.peers.jobs import Item, Job, list_images


def own_decoder(job: Job, workers: int) -> Iterator[Item]:
    """Read, decode and resize by TensorFlow's operations, in its threads."""
    tf.config.set_visible_devices([], "GPU")
    paths = [str(path) for path in list_images()]
    files = tf.data.Dataset.from_tensor_slices(paths).repeat().take(job.count).enumerate()
    dataset = files.map(_load, num_parallel_calls=workers).batch(job.batch).prefetch(4)
    return dataset.as_numpy_iterator()  # type: ignore[no-any-return]


def _load(index: Any, path: Any) -> dict[str, Any]:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    image = tf.image.resize(image, (224, 224), method="bilinear", antialias=True)
    return {"index": index, "image": tf.transpose(image / 255.0, (2, 0, 1))}
