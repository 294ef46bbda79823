"""Accelerate, Hugging Face's Trainer and Lightning use a loader's epochs, length and position correctly.

The pipelines are light; the tests of the examples train with these frameworks.
"""

import pytest
import torch
from torch.utils.data import DataLoader

import stagepipe.torch
from stagepipe.torch import Loader, StageDataset
from tests.support.pipelines import batch, pipeline, stage

pytestmark = [pytest.mark.timeout(100), pytest.mark.filterwarnings("ignore")]

BATCHES = pipeline(stage("to_dict"), batch(4), source=16)
SINGLE = pipeline(stage("to_dict"), source=16)


def ids(batches):
    return [item["id"].tolist() for item in batches]


EXPECTED = [list(range(n, n + 4)) for n in (0, 4, 8, 12)]


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(use_stateful_dataloader=True)
    )


def test_accelerate_leaves_a_loader_unchanged_and_saves_its_registered_state(accelerator, tmp_path):
    with Loader(BATCHES) as loader:
        assert accelerator.prepare(loader) is loader
        accelerator.register_for_checkpointing(loader)
        items = iter(loader)
        next(items)
        accelerator.save_state(str(tmp_path))
        list(items)
        accelerator.load_state(str(tmp_path))
        assert ids(loader) == EXPECTED[1:]


def test_accelerate_prepares_a_data_loader_and_its_state_counts_yielded_items(accelerator):
    with StageDataset(BATCHES) as dataset:
        prepared = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=0))
        assert len(prepared) == 4
        assert [ids(prepared) for _ in range(2)] == [EXPECTED, EXPECTED]
        assert dataset.loader.epoch == 2
        items = iter(prepared)
        next(items)
        state = prepared.state_dict()
        assert ids(items) == EXPECTED[1:]
        resumed = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=0))
        resumed.load_state_dict(state)
        assert ids(resumed) == EXPECTED[1:]


@pytest.fixture
def accelerate_data_loader(monkeypatch):
    """The module in which Accelerate makes DataLoaders; what a test changes in it is put back."""
    module = pytest.importorskip("accelerate.data_loader")
    monkeypatch.setattr(module, "DataLoader", module.DataLoader)
    return module


def test_accelerate_makes_our_data_loaders_once_its_module_is_taken_over(accelerate_data_loader):
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)

    def prepare():
        generator = torch.Generator().manual_seed(3)
        return accelerator.prepare(DataLoader(range(16), 4, shuffle=True, generator=generator, num_workers=1))

    expected = [batch.tolist() for batch in prepare()]
    stagepipe.torch.DataLoader.take_over(accelerate_data_loader)
    prepared = prepare()
    assert type(prepared.base_dataloader) is stagepipe.torch.DataLoader
    assert [batch.tolist() for batch in prepared] == expected
    rest = accelerator.skip_first_batches(prepare(), 2)
    assert type(rest.base_dataloader) is stagepipe.torch.DataLoader
    assert [batch.tolist() for batch in rest] == expected[2:]


class Seen(torch.nn.Module):
    """Records the ids that it receives."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, id, **_):  # noqa: A002 - the field's name
        self.seen.append(id.tolist())
        return {"loss": self.weight.sum()}


def test_an_unchanged_hugging_face_trainer_batches_and_resumes(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def train(dataset, resume=None, **limits):
        model = Seen()
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            save_steps=6,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            **limits,
        )
        transformers.Trainer(model, arguments, train_dataset=dataset).train(resume_from_checkpoint=resume)
        return model.seen

    with StageDataset(SINGLE) as dataset:
        assert train(dataset, max_steps=6) == [*EXPECTED, *EXPECTED[:2]]
        assert train(dataset, str(tmp_path / "checkpoint-6"), num_train_epochs=3) == [*EXPECTED[2:], *EXPECTED]


def test_lightning_starts_at_epoch_0_and_saves_the_loaders_position_in_its_checkpoints(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, loader):
            super().__init__()
            self.loader = loader
            self.seen = []
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch, _):
            self.seen.append((self.loader.epoch, batch["id"].tolist()))
            return self.weight.sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(loader, resume=None, **limits):
        module = Module(loader)
        saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=6, save_top_k=-1)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        lightning.Trainer(callbacks=[saving], **quiet, **limits).fit(module, loader, ckpt_path=resume)
        return module.seen

    def epochs(*numbers):
        return [(number, batch_ids) for number in numbers for batch_ids in EXPECTED]

    with Loader(BATCHES) as loader:
        assert fit(loader, max_steps=7) == epochs(0, 1)[:7]
    with Loader(BATCHES) as loader:
        assert fit(loader, tmp_path / "step=6.ckpt", max_epochs=3) == epochs(0, 1, 2)[6:]
