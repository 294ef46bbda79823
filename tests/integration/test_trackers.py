"""A training loop logs the figures of its run to a tracker, which reads them back."""

import struct

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from stagepipe.report import to_scalars
from stagepipe.torch import Loader
from tests.support.pipelines import batch, pipeline, stage

CONFIG = pipeline(
    stage("image", with_={"size": 100}, workers=2),
    stage("same", fuse=True),
    stage("same", name="third"),
    batch(4),
    source=200,
)


def round_to_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.mark.timeout(90)
def test_tensorboard_reads_the_figures_of_each_step_and_of_the_report(tmp_path):
    logged = {}
    with SummaryWriter(tmp_path) as writer:
        with Loader(CONFIG) as loader:
            for step, _ in enumerate(loader):
                if step % 10 == 9:
                    logged[step] = to_scalars(loader.progress(detailed=True))
                    for name, value in logged[step].items():
                        writer.add_scalar(name, value, step)
        report = loader.report()
        for name, value in to_scalars(report, "stagepipe_report").items():
            writer.add_scalar(name, value, 50)
        writer.add_text("stagepipe_report/verdict", report.verdict.sentence, 50)
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    found = {(name, event.step): event.value for name in events.Tags()["scalars"] for event in events.Scalars(name)}
    expected = {(name, step): value for step, scalars in logged.items() for name, value in scalars.items()}
    expected |= {(name, 50): value for name, value in to_scalars(report, "stagepipe_report").items()}
    assert found == {key: round_to_float32(value) for key, value in expected.items()}
    (text,) = events.Tensors("stagepipe_report/verdict/text_summary")[0].tensor_proto.string_val
    assert text.decode() == report.verdict.sentence


@pytest.mark.timeout(60)
def test_a_run_and_its_report_have_the_same_names():
    with Loader(CONFIG) as loader:
        assert sum(1 for _ in loader) == 50
        live = to_scalars(loader.progress(detailed=True))
    report = to_scalars(loader.report())
    assert set(report) - set(live) == {"stagepipe/wall_s", "stagepipe/first_item_s"}
    assert set(live) <= set(report)
    for count in ("items_out", "samples_out", "skipped", "errors", "restarts"):
        assert live[f"stagepipe/{count}"] == report[f"stagepipe/{count}"]


def test_an_inline_run_has_the_figures_of_the_run():
    with Loader(CONFIG, inline=True) as loader:
        assert sum(1 for _ in loader) == 50
        live = to_scalars(loader.progress(detailed=True))
    assert live["stagepipe/samples_out"] == 200
    assert all(name.startswith("stagepipe/") for name in live)
    assert to_scalars(loader.report())["stagepipe/samples_out"] == 200
