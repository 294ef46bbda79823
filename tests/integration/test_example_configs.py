"""The examples of docs/gallery.md run to their end in processes; what they write is read by its own library."""

import collections
import itertools
import json
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer

from stagepipe import Pipeline
from stagepipe.api import open_shards, run_to_sink
from stagepipe.report import Report
from stagepipe.stages.image import Decode, Normalize, Resize
from stagepipe.torch import Loader
from tests.support.paths import ROOT


def example(name: str) -> Path:
    return ROOT / "examples" / name / f"{name}.yaml"


def run_to_end(name: str, *overrides: str) -> Report:
    pipeline = Pipeline(example(name), overrides)
    with open_shards(pipeline, resume=False) as shards, pipeline:
        run_to_sink(pipeline, lambda _: None, shards=shards)
    return pipeline.report()


@pytest.fixture
def run(demo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a config to its end, and return the folder of its output."""

    def run(name: str, *overrides: str) -> Path:
        monkeypatch.chdir(demo_folder)
        run_to_end(name, *overrides)
        return demo_folder / "runs" / name

    return run


def load_ops(path: str) -> dict[str, Any]:
    """The functions of a Python file of an example."""
    return runpy.run_path(str(ROOT / "examples" / path))


def to_pixels(path: Path, size: int, mean: list[float], std: list[float]) -> np.ndarray:
    """What the stages `decode`, `resize` and `normalize` make of a file."""
    image = Decode()(path.read_bytes())
    return Normalize(mean=mean, std=std)(Resize(size, fit="crop")(image))


@pytest.fixture
def items(demo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Yield the items of a config that has no sink."""

    def items(name: str) -> list[Any]:
        monkeypatch.chdir(demo_folder)
        with Pipeline(example(name), inline=True) as pipeline:
            return list(pipeline)

    return items


def test_thumbnails_keep_the_proportions(run, demo_data: Path):
    out = run("thumbnails")
    originals, thumbnails = sorted((demo_data / "images").glob("*/*.jpg")), sorted(out.rglob("*.jpg"))
    assert len(thumbnails) == len(originals)
    for name, thumbnail_name in zip(originals, thumbnails, strict=True):
        with Image.open(thumbnail_name) as thumbnail, Image.open(name) as original:
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


def test_the_clean_table_equals_that_of_pandas_for_each_part(run, demo_data: Path):
    table = pd.concat(pd.read_parquet(path) for path in sorted(run("table_cleaning").glob("*.parquet")))
    raw = pd.read_csv(demo_data / "table/measurements.csv")
    celsius = raw["temperature"].where(raw["unit"] == "C", (raw["temperature"] - 32) / 1.8)
    raw = raw.assign(temperature=celsius.where(celsius.between(-60, 60)), sensor=raw["sensor"].str.strip())
    expected = raw.drop(columns="unit").dropna().drop_duplicates()
    assert 300 < len(table) < 500
    assert table["sensor"].tolist() == expected["sensor"].tolist()
    np.testing.assert_allclose(table["temperature"], expected["temperature"])
    assert (table["time"] == pd.to_datetime(expected["time"].to_numpy())).all()


def test_extracted_features_are_those_of_the_model(run):
    out = run("feature_extraction", "sink.with.part_items=8")
    table = pd.concat(pd.read_parquet(path) for path in sorted(out.glob("*.parquet")))
    assert table.columns.tolist() == ["path", "label", "features"]
    assert [Path(path).parent.name for path in table["path"]] == table["label"].tolist()
    images = [to_pixels(Path(path), 64, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) for path in table["path"]]
    module = load_ops("feature_extraction/feature_ops.py")["Backbone"](seed=17)
    expected = module(torch.from_numpy(np.stack(images))).detach().numpy()
    np.testing.assert_allclose(np.stack(table["features"]), expected, atol=1e-5)
    assert len(table) == 22


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_feature_extraction_that_is_killed_goes_on_to_the_same_rows(demo_data: Path, tmp_path: Path):
    command = [Path(sys.executable).parent / "stagepipe", "run", example("feature_extraction"), "--resume", "--quiet"]
    command += [
        f"vars.images={demo_data / 'images'}",
        "stages.extract.batch.size=1",
        "sink.with.part_items=1",
        "sink.with.shard_items=5",
    ]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, f"vars.out={whole}"], check=True)
    process = subprocess.Popen([*command, f"vars.out={out}"])
    while process.poll() is None and not list(out.glob("*.parquet")):
        time.sleep(0.002)
    process.kill()
    process.wait()
    subprocess.run([*command, f"vars.out={out}"], check=True)
    shards = sorted(whole.glob("*.parquet"))
    assert len(shards) == 5
    assert [(path.name, path.read_bytes()) for path in sorted(out.glob("*.parquet"))] == [
        (path.name, path.read_bytes()) for path in shards
    ]


def test_each_of_three_models_is_in_one_process_and_scores_every_image(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(demo_folder)
    report = run_to_end("three_models", "vars.width=16")
    lines = Path("runs/three_models/000000.jsonl").read_text().splitlines()
    items = [json.loads(line) for line in lines]
    images = [to_pixels(Path(item["path"]), 32, [0.5] * 3, [0.5] * 3) for item in items]
    for seed, name in enumerate(["scene", "style", "quality"], start=1):
        module = load_ops("three_models/model_ops.py")["Scores"](seed=seed, width=16)
        expected = module(torch.from_numpy(np.stack(images))).detach().numpy()
        np.testing.assert_allclose([item[name] for item in items], expected, atol=1e-5)
    assert [stage.name for stage in report.stages if stage.pss_bytes] == [
        *("source", "decode", "scene", "style", "quality", "jsonl"),
    ]


def test_a_mix_has_the_shares_of_its_weights_and_every_document(run, demo_data: Path):
    lines = [line for path in sorted(run("dataset_mixing").glob("*.jsonl")) for line in path.read_text().splitlines()]
    mixed = [json.loads(line) for line in lines]
    counts = collections.Counter(document["collection"] for document in mixed)
    for name, share in {"web": 0.5, "books": 0.3, "code": 0.2}.items():
        assert abs(counts[name] - share * len(mixed)) <= 1
        written = (demo_data / f"documents/{name}.jsonl").read_text().splitlines()
        assert {document["number"] for document in mixed if document["collection"] == name} == set(range(len(written)))


def test_images_for_training_are_normalized_batches(items):
    [batch] = items("image_training")
    assert (batch["data"].shape, batch["data"].dtype) == ((16, 3, 64, 64), np.float32)
    assert -2.2 < batch["data"].min() < 0 < batch["data"].max() < 2.7
    assert len(batch["label"]) == 16


def test_a_network_trains_on_the_images(demo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(demo_folder)
    with Loader(example("image_training"), inline=True) as loader:
        loss = load_ops("image_training/train_on_images.py")["train"](loader, epochs=2)
    assert 0 < loss < 10


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_training_script_runs(demo_folder: Path):
    script = ROOT / "examples/image_training/train_on_images.py"
    done = subprocess.run([sys.executable, script], cwd=demo_folder, capture_output=True, text=True, check=True)
    assert re.findall(r"epoch (\d): loss \d", done.stdout) == ["0", "1"]
