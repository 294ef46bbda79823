"""The ready stages in pipelines: resumed anywhere, after a death, inline; errors name stage, item and field."""

import io
import itertools
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stagepipe import Pipeline, RunError
from stagepipe.testing import crash_workers_at
from tests.support.pipelines import batch, outputs, pipeline, plain, stage

DOCUMENTS = [{"ids": np.arange(number % 7, dtype=np.int32) + 10 * number, "id": number} for number in range(40)]
SAMPLES = [{"x": np.full(number * 7 % 11 + 1, number), "id": number} for number in range(40)]
PACK = stage("stagepipe.stages.text.Pack", with_={"length": 5, "sequences": 3, "field": "ids", "separator": -1})
BUCKET = stage("stagepipe.stages.Bucket", with_={"size": 4, "batches": 3, "field": "x"})
PADDED = batch(4)
PADDED["with"] = {"size": 4, "pad": {"x": 0}, "lengths": True}
TABLE = stage("stagepipe.stages.table.FromRows", with_={"size": 6, "kind": "arrow"})
TO_ROWS = stage("stagepipe.stages.table.ToRows", workers=2)
CASES = {
    "Pack": pipeline(PACK, source={"uses": DOCUMENTS}),
    "Bucket and Batch with pad": pipeline(BUCKET, PADDED, source={"uses": SAMPLES}),
    "FromRows and ToRows": pipeline(TABLE, TO_ROWS, source={"uses": [{"n": n, "t": f"{n}"} for n in range(40)]}),
}


@pytest.fixture(params=CASES)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CASES[request.param]


def test_a_resume_anywhere_continues_exactly(config):
    with Pipeline(config, inline=True) as running:
        expected = [plain(item) for item in running]
    for position in range(0, len(expected), 3):
        with Pipeline(config, inline=True) as stopped:
            assert [plain(item) for item in itertools.islice(stopped, position)] == expected[:position]
            state = stopped.state_dict()
        with Pipeline(config, inline=True) as resumed:
            resumed.load_state_dict(state)
            assert [plain(item) for item in resumed] == expected[position:]


def test_a_death_changes_nothing(config):
    expected = outputs(config, inline=True)
    name = config["stages"][0]["name"]
    with crash_workers_at(f"send.after:3:{name}/0"), Pipeline(config) as running:
        assert [plain(item) for item in running] == expected
        assert running.report().restarts


def test_packing_loses_no_token_and_pads_only_the_end_of_a_group():
    packed = outputs(CASES["Pack"], inline=True)
    sequences = [sequence["ids"][2] for sequence in packed]
    assert {len(sequence) for sequence in sequences} == {5}
    flat = [token for sequence in sequences for token in sequence if token]
    whole = [token for d in DOCUMENTS if len(d["ids"]) for token in [*d["ids"].tolist(), -1] if token]
    assert flat == whole


def test_buckets_make_batches_of_similar_length():
    bucketed = outputs(CASES["Bucket and Batch with pad"], inline=True)
    unsorted = outputs(pipeline(PADDED, source={"uses": SAMPLES}), inline=True)
    assert sorted(n for item in bucketed for n in item["id"][2]) == list(range(40))

    def padding(batches):
        return sum(len(row) for item in batches for row in item["x"][2]) - sum(len(s["x"]) for s in SAMPLES)

    assert padding(bucketed) < padding(unsorted) / 2
    assert len(bucketed) == 10


def test_buckets_work_in_any_order_and_have_a_length():
    config = pipeline(stage("same", workers=3), BUCKET, source={"uses": SAMPLES}, order="any")
    with Pipeline(config) as running:
        assert len(running) == 40
        assert sorted(item["id"] for item in running) == list(range(40))


@pytest.mark.parametrize("inline", [False, True])
def test_an_error_names_stage_item_and_field(inline, tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    items = [{"data": file.getvalue(), "path": "good.png"}, {"data": b"no image", "path": "bad.png"}]
    config = pipeline(stage("stagepipe.stages.image.Decode", field="data"), source={"uses": items})
    with pytest.raises(RunError) as caught:
        outputs(config, inline=inline)
    text = str(caught.value)
    assert caught.value.stage == "decode"
    for words in ("item 1", "image.Decode: pillow cannot decode 8 bytes", "the field `data`", "`path` is bad.png"):
        assert words in text
    assert isinstance(caught.value, ValueError)


def test_bad_items_can_be_skipped():
    items = [{"data": b"no image", "path": "bad.png"}]
    entry = stage("stagepipe.stages.image.Decode", field="data", on_error="skip")
    with Pipeline(pipeline(entry, source={"uses": items})) as running:
        assert list(running) == []
        [letter] = running.report().dead_letters
    assert "cannot decode" in letter.error


def test_a_stage_without_its_package_ends_the_run_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    entry = stage("stagepipe.stages.audio.Resample", with_={"rate": 8000})
    with pytest.raises(RunError, match=r"requires the package soxr; run `pip install 'soundfile>=.+' 'soxr>=.+'`"):
        outputs(pipeline(entry), inline=True)


def test_a_module_runs_in_a_worker_on_lists():
    entry = stage(
        "stagepipe.stages.model.Module",
        with_={"module": {"uses": "torch.nn.Flatten", "with": {"start_dim": 1}}},
        field="x",
        batch={"size": 4},
    )
    items = [{"x": np.full((2, 3), number, np.float32), "id": number} for number in range(9)]
    results = outputs(pipeline(entry, source={"uses": items}))
    assert [item["id"] for item in results] == list(range(9))
    assert [item["x"] for item in results] == [("array", "float32", [float(n)] * 6) for n in range(9)]
