"""Images: one file per item, under a name that no other item has."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stagepipe import RunError, UsageError
from stagepipe.sinks import ImagesSink
from tests.support.sink_output import list_shards, make_config, write


def write_items(out: Path, items: list[Any], **options: Any) -> list[str]:
    sink = {"uses": "stagepipe.sinks.images", "with": {"path": str(out), "part_items": 2, **options}}
    write({"source": {"uses": items}, "sink": sink})
    return [str(path.relative_to(out)) for path in list_shards(out)]


def test_images_without_names_are_numbered_and_no_folder_has_too_many(tmp_path: Path):
    images = [np.full((4, 4, 3), 50 * number, np.uint8) for number in range(5)]
    names = write_items(tmp_path, images, shard_items=2)
    assert names == [f"{number // 2:06d}/{number:08d}.jpg" for number in range(5)]
    with Image.open(tmp_path / names[3]) as image:
        assert np.abs(np.asarray(image).astype(int) - 150).max() <= 2


def test_gray_and_pil_images_are_kept_and_quality_counts(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    items = [noise, noise[..., 0], noise[..., :1], Image.fromarray(noise)]
    ImagesSink("out", format="png").write_part(items, tmp_path / "png")
    for row, pixels in enumerate((noise, noise[..., 0], noise[..., 0], noise)):
        with Image.open(tmp_path / "png" / f"{row}.png") as image:
            assert (np.asarray(image) == pixels).all()
    for quality in (30, 95):
        ImagesSink("out", quality=quality).write_part([noise], tmp_path / str(quality))
    small, large = ((tmp_path / name / "0.jpg").stat().st_size for name in ("30", "95"))
    assert small < large / 2


@pytest.mark.parametrize(
    "mode, fix",
    [
        *((mode, "convert it in a stage") for mode in ("P", "1", "YCbCr", "RGBA")),
        *((mode, "scale its values .* `image.convert` clips them") for mode in ("I;16", "I;16B", "I", "F")),
    ],
)
def test_a_pil_image_whose_pixels_are_no_colors_is_refused(tmp_path: Path, mode: str, fix: str):
    items = [{"image": Image.new("L", (2, 3))}, {"image": Image.new(mode, (2, 3))}]
    with pytest.raises(ValueError, match=rf"row 1 of the part: field `image` is a PIL image of mode {mode}; {fix}"):
        ImagesSink("out", field="image").write_part(items, tmp_path / "part")


@pytest.mark.parametrize("second", [1, 3], ids=["in one part", "in two parts"])
def test_two_items_of_one_name_are_refused_with_both(tmp_path: Path, second: int):
    items = [{"image": np.zeros((2, 2), np.uint8), "meta": {"id": f"n{number}"}} for number in range(4)]
    assert write_items(tmp_path / "good", items, field="image", name="meta.id")[1] == "000000/n1.jpg"
    items[second]["meta"]["id"] = "n0"
    with pytest.raises(RunError, match=rf"item {second} has the same name `n0\.jpg` as item 0"):
        write_items(tmp_path / "bad", items, field="image", name="meta.id")


def test_a_resume_knows_the_names_of_earlier_runs(tmp_path: Path):
    (tmp_path / "000000").mkdir()
    (tmp_path / "000000" / "[a].jpg").touch()
    sink = ImagesSink(tmp_path, field="image", name="id")
    part = tmp_path / "part"
    sink.write_part([{"image": np.zeros((2, 2), np.uint8), "id": "[a]"}], part)
    with pytest.raises(ValueError, match=r"item 7 has the same name `\[a\]\.jpg` as .*000000/\[a\]\.jpg"):
        sink.place_files(part, 7, 1, {})


@pytest.mark.parametrize("name", ["../up", "/root", "a/b", "", ".hidden", "a\0b", "\udc80", "x" * 300, None, 1.5, True])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: Any):
    item = {"image": np.zeros((2, 2), np.uint8), "id": name}
    with pytest.raises((TypeError, ValueError), match=r"images: row 0 of the part: the name .`id`."):
        ImagesSink("out", field="image", name="id").write_part([item], tmp_path / "part")


def test_wrong_arguments_are_refused():
    for options, message in (
        ({"format": "gif"}, "format is 'gif'; give one of jpeg, png"),
        ({"quality": 0}, "quality is 0"),
        ({"format": "png", "quality": 50}, "PNG has no `quality`"),
    ):
        with pytest.raises(ValueError, match=message):
            ImagesSink("out", **options)


def test_overwrite_deletes_the_images_and_leaves_other_folders(tmp_path: Path):
    out = tmp_path / "out"
    write(make_config(out, "images", 30, shard_items=10))
    (out / "202401").mkdir()
    (out / "202401" / "mine.png").write_text("mine")
    (out / "000002" / ".DS_Store").touch()
    write(make_config(out, "images", 5, overwrite=True))
    names = [str(path.relative_to(out)) for path in list_shards(out)]
    assert names == [*(f"000000/item {n}.png" for n in range(5)), "000002/.DS_Store", "202401/mine.png"]
    assert not (out / "000001").exists()


def unlink_at_item_25(item: dict[str, Any]) -> dict[str, Any]:
    if item["id"] == 25:
        Path(os.environ["TEST_UNLINKED"]).unlink()
    return item


@pytest.mark.parametrize("lost", ["000000", "000000/item 3.png"])
def test_images_that_are_lost_before_a_resume_or_the_end_are_noticed(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    config = make_config(out, "images", 30, shard_items=10, part_items=5)
    config["stages"].append({"name": "call", "uses": unlink_at_item_25})
    monkeypatch.setenv("TEST_UNLINKED", str(tmp_path / "missing"))
    with pytest.raises(RunError, match="item 25"):
        write(config)
    (out / lost).rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"000000 has [09] files, but 10 were written; put the files back"):
        write(config, resume=True)
    (tmp_path / "elsewhere").rename(out / lost)
    monkeypatch.setenv("TEST_UNLINKED", str(out / "000001" / "item 12.png"))
    with pytest.raises(RunError, match=r"000001 has 9 files, but 10 were written"):
        write(config, resume=True)
