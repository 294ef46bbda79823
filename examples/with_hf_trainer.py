"""A pipeline as the train dataset of Hugging Face's `Trainer`, stopped in mid-epoch and resumed.

    python examples/with_hf_trainer.py

The Trainer requires a `DataLoader`; a `StageDataset` passes the pipeline's batches to it unchanged. On resuming, the
Trainer reads the batches of the epoch that it has already used and drops them; the pipeline makes the same ones again.
Requires the `examples` extra.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from train_digits import CONFIG, accuracy, digest, make_model
from transformers import Trainer, TrainingArguments

from stagepipe.torch import StageDataset

EPOCHS = 3
SAVE = 60  # steps
STOP = 70  # steps; the second epoch has steps 43 to 86


class DigitsModel(nn.Module):
    """The Trainer calls it with the batch's fields as arguments, and expects the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.model(image)
        return {"loss": cross_entropy(scores, label), "logits": scores}


class PipelineTrainer(Trainer):
    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the batches, which the pipeline makes in its own process."""
        loader = DataLoader(self.train_dataset, batch_size=None, num_workers=0)
        return self.accelerator.prepare(loader)


def fit(dataset: StageDataset, folder: Path, checkpoint: Path | None = None, **limits: int) -> DigitsModel:
    """Train from the start, or from a checkpoint."""
    torch.manual_seed(0)
    model = DigitsModel()
    arguments = TrainingArguments(
        str(folder),
        learning_rate=0.003,
        lr_scheduler_type="constant",
        save_steps=SAVE,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **limits,
    )
    trainer = PipelineTrainer(model, arguments, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    print(f"trained up to step {trainer.state.global_step}")
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, StageDataset(CONFIG) as dataset:
        folder = Path(name)
        fit(dataset, folder / "stopped", max_steps=STOP)
        resumed = fit(dataset, folder / "resumed", folder / "stopped" / f"checkpoint-{SAVE}", num_train_epochs=EPOCHS)
        undisturbed = fit(dataset, folder / "undisturbed", num_train_epochs=EPOCHS)

    print(f"accuracy: {accuracy(resumed.model):.1%}")
    equal = digest(resumed) == digest(undisturbed)
    print("the weights are equal" if equal else "the weights differ", "to those of an uninterrupted run")
