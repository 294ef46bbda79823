"""Builds the pipeline of audio_features.yaml in Python.

From the root of the repository:

    python scripts/make_audio.py
    python examples/audio_features/build_audio_features.py
"""

from audio_ops import log_spectrogram

from stagepipe import defer, from_source, sinks, sources
from stagepipe.stages import audio

AUDIO = "data/audio"
OUT = "runs/audio_features"

builder = (
    from_source(defer(sources.files, f"{AUDIO}/*.wav", read=True))
    .map_field("data", defer(audio.Decode), name="decode")
    .map_field("data", defer(audio.Resample, 16_000), name="resample")
    .map_field("data", log_spectrogram, name="features", workers=2)
    .batch(32, pad={"data": 0}, lengths=True)  # adds data_length
    .sink(defer(sinks.npz, OUT, overwrite=True))
    .with_options(name="audio_features")
)

if __name__ == "__main__":
    builder.run().show()
