"""The output is bit-identical with any number of workers, in every run, for any library's augmentations."""

from typing import Any
from unittest.mock import ANY

import pytest

from stagepipe import Pipeline
from stagepipe.engine import Nondeterminism
from tests.support.pipelines import STAGES, batch, digest, outputs, pipeline, plain, shuffle, stage, with_workers

RANDOM_SOURCES = "tests.support.random_sources"
TORCHVISION = "torchvision.transforms.v2"
AUGMENT = stage(
    f"{TORCHVISION}.Compose",
    name="augment",
    field="image",
    as_="tensor",
    with_={
        "transforms": [
            {"uses": f"{TORCHVISION}.RandomResizedCrop", "with": {"size": 6}},
            {"uses": f"{TORCHVISION}.RandomHorizontalFlip"},
            {"uses": f"{TORCHVISION}.ColorJitter", "with": {"brightness": 0.5}},
        ]
    },
)
BLUR = {"uses": "albumentations.GaussNoise", "with": {"p": 0.8}}
FLIP = {"uses": "albumentations.HorizontalFlip", "with": {"p": 0.5}}

DRAWS = pipeline(
    stage("light_draws"), stage("random_parts"), batch(3), shuffle(3), stage("same"), source=30, seed=11, window=16
)
IMAGES = pipeline(
    stage("image", with_={"size": 40}, fuse=True),
    stage("pillow_jitter", field="image"),
    AUGMENT,
    batch(4),
    source=24,
    seed=11,
)
TORCH = pipeline(stage("draws"), stage("random_parts", fuse=True), source=20, seed=11)
ALBUMENTATIONS = pipeline(
    stage("image", with_={"size": 40}, fuse=True),
    stage("albumentations.Compose", name="augment", field={"image": "image"}, with_={"transforms": [BLUR, FLIP]}),
    source=20,
    seed=11,
)


def collect_digests(config: dict[str, Any], runs: int, epochs: int) -> set[str]:
    """Return the digests of an inline run, and of `runs` runs with one and with five workers per stage."""
    digests = [digest(outputs(config, inline=True, epochs=epochs))]
    for _ in range(runs):
        digests += [digest(outputs(with_workers(config, workers), epochs=epochs)) for workers in (1, 5)]
    return set(digests)


def test_global_generators_and_the_generator_of_the_context():
    assert len(collect_digests(DRAWS, runs=1, epochs=2)) == 1


@pytest.mark.parametrize(
    "config", [TORCH, IMAGES, ALBUMENTATIONS], ids=["torch", "torchvision and Pillow", "albumentations"]
)
def test_augmentations_of_libraries(config):
    expected = digest(outputs(config, inline=True, epochs=2))
    assert digest(outputs(with_workers(config, 2), epochs=2)) == expected
    assert digest(outputs({**config, "seed": 12}, inline=True, epochs=2)) != expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "config", [DRAWS, IMAGES, ALBUMENTATIONS], ids=["draws", "torchvision and Pillow", "albumentations"]
)
def test_forty_one_runs_have_one_digest(config):
    digests = collect_digests(config, runs=20, epochs=1)
    print(f"20 runs with 1 worker, 20 with 5, one inline: {sorted(digests)}")  # noqa: T201 - shown with -s
    assert len(digests) == 1


def test_reseed_false_does_not_seed_the_global_generators():
    config = pipeline(stage("light_draws", reseed=False), stage("same", fuse=True), source=4, seed=1)
    first, second = (outputs(config) for _ in range(2))
    assert [item["own"] for item in first] == [item["own"] for item in second]
    assert [item["python"] for item in first] != [item["python"] for item in second]


def test_two_stages_of_one_function_draw_differently():
    config = pipeline(stage("light_draws"), stage(f"{STAGES}.draw_again"), source=3)
    assert all(item["python"] != item["again"] for item in outputs(config))


STREAM = pipeline(
    stage(f"{RANDOM_SOURCES}.noisy", fuse=True),
    stage(f"{RANDOM_SOURCES}.noisy_parts", workers=2),
    stage(f"{RANDOM_SOURCES}.NoisyPairs"),
    source={"uses": f"{RANDOM_SOURCES}.stream", "with": {"count": 12}},
    seed=11,
)


def test_a_stream_that_draws_fused_or_not_and_resumed():
    expected = outputs(STREAM, inline=True)
    unfused = {**STREAM, "stages": [{**entry, "fuse": False} for entry in STREAM["stages"]]}
    with Pipeline(STREAM) as running:
        items = iter(running)
        assert [plain(next(items)) for _ in range(5)] == expected[:5]
        state = running.state_dict()
    with Pipeline(unfused) as resumed:
        resumed.load_state_dict(state, allow_changed=True)
        assert [plain(item) for item in resumed] == expected[5:]
        resumed.set_epoch(0)
        assert [plain(item) for item in resumed] == expected


KEPT = pipeline(
    stage("tests.support.own_generators.Augment"),
    source={"uses": "stagepipe.sources.dataset", "with": {"dataset": "tests.support.own_generators.Images"}},
    seed=11,
)
KEPT["source"]["with"]["with"] = {"count": 8}


def test_generators_that_a_dataset_and_a_stage_keep():
    expected = outputs(KEPT, inline=True, epochs=2)
    assert expected[:8] != expected[8:]
    assert outputs(KEPT, inline=True, epochs=2) == expected
    changed = {"source": {**KEPT["source"], "workers": 2}, "stages": [{**KEPT["stages"][0], "fuse": True}]}
    assert outputs({**KEPT, **changed}, epochs=2) == expected


@pytest.mark.parametrize(
    "culprit,difference",
    [
        ("noisy", None),
        ("unseeded", Nondeterminism(("culprit", "same"), "0", "runs")),
        ("Counting", Nondeterminism(("culprit", "same"), ANY, "workers")),
    ],
)
def test_the_check_names_the_first_stage_that_differs(culprit, difference):
    """An item every 10 ms, so that both workers of a stage get some."""
    config = pipeline(
        stage(f"{RANDOM_SOURCES}.noisy_parts" if culprit == "noisy" else "nap", name="before"),
        stage(f"{RANDOM_SOURCES}.{culprit}", name="culprit"),
        stage("same", fuse=True),
        shuffle(3),
        source=STREAM["source"] if culprit == "noisy" else 20,
    )
    assert Pipeline(config).find_nondeterminism() == difference
