"""The examples of docs/how-to/examples.md run to their end in processes; what they write is read by its own library."""

import itertools
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tokenizers import Tokenizer

from stagepipe import Pipeline
from stagepipe.api import run_to_sink
from tests.support.paths import ROOT


@pytest.fixture
def run(demo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a config to its end, and return the folder of its output."""

    def run(name: str) -> Path:
        monkeypatch.chdir(demo_folder)
        with Pipeline(ROOT / f"configs/{name}.yaml") as pipeline:
            run_to_sink(pipeline, lambda _: None)
        return demo_folder / "runs" / name

    return run


@pytest.fixture
def items(demo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Yield the items of a config that has no sink."""

    def items(name: str) -> list[Any]:
        monkeypatch.chdir(demo_folder)
        with Pipeline(ROOT / f"configs/{name}.yaml", inline=True) as pipeline:
            return list(pipeline)

    return items


def test_thumbnails_keep_the_proportions(run, demo_data: Path):
    out = run("thumbnails")
    originals = {path.relative_to(demo_data / "images") for path in (demo_data / "images").glob("*/*.jpg")}
    assert {path.relative_to(out) for path in out.rglob("*") if path.is_file()} == originals
    for name in originals:
        with Image.open(out / name) as thumbnail, Image.open(demo_data / "images" / name) as original:
            scale = 96 / max(original.size)
            assert max(thumbnail.size) == 96
            assert np.abs(np.array(thumbnail.size) - np.array(original.size) * scale).max() <= 1


def test_audio_features_are_padded_to_the_longest(run):
    with np.load(run("audio_features") / "000000.npz") as shard:
        features, lengths = shard["data"], shard["data_length"]
        assert [Path(path).name for path in shard["path"]] == [f"{number:05d}.wav" for number in range(1, 6)]
    assert (len(features), features.shape[1], features.dtype) == (5, max(lengths), np.float32)
    assert features.shape[2] == 0.025 * 16_000 // 2 + 1
    for rows, length in zip(features, lengths, strict=True):
        assert np.abs(rows[:length]).min() > 0
        assert not rows[length:].any()


def test_every_clip_of_every_video_comes_once(items, demo_data: Path):
    expected = []
    for path in sorted((demo_data / "videos").glob("*.mp4")):
        with av.open(path) as container:
            times = [frame.time for frame in container.decode(video=0)][::2]
        expected += times[: len(times) // 8 * 8 : 8]
    batches = items("video_clips")
    assert {batch["frames"].shape[1:] for batch in batches} == {(8, 64, 64, 3)}
    assert sorted(start for batch in batches for start in batch["start_s"].tolist()) == sorted(expected)


def test_packed_sequences_hold_every_token(run, demo_data: Path):
    shards = [dict(np.load(path)) for path in sorted(run("packed_tokens").glob("*.npz"))]
    tokens, segments = (np.concatenate([shard[name] for shard in shards]) for name in ("data", "segment_ids"))
    assert (tokens.shape[1], tokens.dtype, segments.shape) == (256, np.int32, tokens.shape)
    tokenizer = Tokenizer.from_file(str(demo_data / "text/tokenizer.json"))
    documents = [
        [*tokenizer.encode(path.read_bytes().decode()).ids, 0] for path in (demo_data / "text/texts").glob("*.txt")
    ]
    packed = tokens[segments > 0].tolist()
    ends = [index + 1 for index, token in enumerate(packed) if token == 0]
    found = [packed[start:stop] for start, stop in itertools.pairwise([0, *ends])]
    assert sorted(found) == sorted(documents)
    assert (segments == 0).sum() < 0.02 * tokens.size


def test_the_clean_table_is_what_pandas_makes_of_each_part(run, demo_data: Path):
    table = pd.concat(pd.read_parquet(path) for path in sorted(run("table_cleaning").glob("*.parquet")))
    raw = pd.read_csv(demo_data / "table/measurements.csv")
    celsius = raw["temperature"].where(raw["unit"] == "C", (raw["temperature"] - 32) / 1.8)
    raw = raw.assign(temperature=celsius.where(celsius.between(-60, 60)), sensor=raw["sensor"].str.strip())
    expected = raw.drop(columns="unit").dropna().drop_duplicates()
    assert 300 < len(table) < 500
    assert table["sensor"].tolist() == expected["sensor"].tolist()
    np.testing.assert_allclose(table["temperature"], expected["temperature"])
    assert (table["time"] == pd.to_datetime(expected["time"].to_numpy())).all()


def test_images_for_training_are_normalized_batches(items):
    [batch] = items("image_training")
    assert (batch["data"].shape, batch["data"].dtype) == ((16, 3, 64, 64), np.float32)
    assert -2.2 < batch["data"].min() < 0 < batch["data"].max() < 2.7
    assert len(batch["label"]) == 16
