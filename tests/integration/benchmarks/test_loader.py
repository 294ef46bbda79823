"""benchmarks/loader runs every contestant in its own process and checks what each delivers."""

import json

import numpy as np
import pytest
from PIL import Image

from benchmarks.loader import __main__ as command
from tests.support.command import run_benchmark
from tests.support.processes import list_run_command_lines

TINY = ("--rounds", "1", "--batch", "2", "--side", "16", "--items", "6", "--model-mb", "1")
DEADLINE_S = 280
COLUMNS = (
    "first_batch_s",
    "second_first_s",
    "items_per_s",
    "cpu_s_per_item",
    "pss_bytes",
    "bare_pss_bytes",
    "life_cpu_s",
)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for number in range(6):
        path = folder / f"class_{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (24, 20, 3), np.uint8)).save(path)
    return folder


def run_loader(*options):
    return run_benchmark("loader", *TINY, *options, timeout=DEADLINE_S)


def leftovers():
    return list_run_command_lines("loader")


def measured(done, path):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not leftovers()
    found = json.loads(path.read_text())
    for row in found["rows"]:
        (answer,) = row["answers"]
        assert min(answer[name] for name in COLUMNS) > 0, row["contestant"]
    return found


@pytest.mark.slow  # a dozen processes import torch, one after another
@pytest.mark.timeout(DEADLINE_S + 10)
@pytest.mark.parametrize("part", ["collate", "quickstart", "models"])
def test_every_contestant_of_a_part_has_a_row_and_the_same_batches(part, images, tmp_path):
    done = run_loader("--only", part, "--images", str(images), "--json", str(tmp_path / "l.json"))
    found = measured(done, tmp_path / "l.json")
    names = [row["contestant"] for row in found["rows"]]
    assert len(names) == len(set(names)) >= 5
    assert all(name in done.stdout for name in names)
    # The last digest covers all bytes, some of which `stagepipe header only` does not write.
    digests = {tuple(text.rpartition(" ")[0] for text in row["answers"][0]["digests"]) for row in found["rows"]}
    assert len(digests) == 1
    assert "python -m benchmarks.loader" in found["command"]
    assert found["machine"]["cpus"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 10)
def test_the_quickstart_and_its_dataset_yield_the_same_batches(images, tmp_path):
    only = "quickstart:stagepipe,quickstart:DataLoader 2 workers prefetch 2"
    done = run_loader("--only", only, "--images", str(images), "--json", str(tmp_path / "l.json"))
    found = measured(done, tmp_path / "l.json")
    first, second = (row["answers"][0] for row in found["rows"])
    assert first["digests"] == second["digests"]
    assert len(first["digests"]) == 3
    assert len(first["waits_s"]) == 2 * 2, "two epochs of three batches, without the first of each"
    assert [bool(target["measured"]) for target in found["targets"]] == [False, False, True, True, False]
    assert {target["met"] for target in found["targets"]} == {None}, "one round decides nothing"


@pytest.mark.parametrize(
    "name", ["collate:stagepipe header only", pytest.param("collate:DataLoader", marks=pytest.mark.slow)]
)
def test_a_wrong_batch_is_detected(name):
    done = run_loader("--only", name, "--corrupt", name.partition(":")[2])
    assert done.returncode == 1
    assert "batch 0 is wrong: received" in done.stderr
    assert "Traceback" not in done.stderr
    assert not leftovers()


def test_a_contestant_that_fails_is_named_with_its_error(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    done = run_loader("--only", "quickstart:stagepipe", "--images", str(tmp_path))
    assert done.returncode == 1
    assert "quickstart, reference: PIL.UnidentifiedImageError: cannot identify image file" in done.stderr


def test_a_folder_without_images_says_how_to_create_them(tmp_path):
    with pytest.raises(SystemExit, match=r"scripts/make_images\.py"):
        command.main(["--only", "quickstart", "--images", str(tmp_path)])


def test_an_unknown_name_is_answered_with_the_known_names(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--only", "quickstart:torchdata"])
    error = capsys.readouterr().err
    assert "'quickstart:torchdata'" in error
    assert "quickstart:DataLoader 1 worker prefetch 2" in error
