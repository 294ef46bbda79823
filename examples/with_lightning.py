"""A pipeline as the train dataloader of a Lightning `Trainer`, stopped in mid-epoch and resumed.

    python examples/with_lightning.py

Pass the `Loader` itself: Lightning finds its `state_dict` and saves it in its own checkpoints.
Requires the `examples` extra.
"""

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from train_digits import CONFIG, accuracy, digest, make_model

from stagepipe.torch import Loader

EPOCHS = 3
SAVE = 60  # steps
STOP = 70  # steps; the second epoch has steps 43 to 86


class DigitsModule(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        return cross_entropy(self.model(batch["image"]), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)

    # Dropout draws from torch's generator, which Lightning does not save.
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["generator"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        torch.set_rng_state(checkpoint["generator"])


def fit(loader: Loader, folder: Path, checkpoint: Path | None = None, **limits: int) -> DigitsModule:
    """Train from the start, or from a checkpoint."""
    torch.manual_seed(0)
    module = DigitsModule()
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=SAVE, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **limits,
    )
    trainer.fit(module, train_dataloaders=loader, ckpt_path=checkpoint)
    print(f"trained up to step {trainer.global_step}")
    return module


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, Loader(CONFIG) as loader:
        folder = Path(name)
        fit(loader, folder / "stopped", max_steps=STOP)
        resumed = fit(loader, folder / "resumed", folder / "stopped" / f"step={SAVE}.ckpt", max_epochs=EPOCHS)
        loader.set_epoch(0)
        undisturbed = fit(loader, folder / "undisturbed", max_epochs=EPOCHS)

    print(f"accuracy: {accuracy(resumed.model):.1%}")
    equal = digest(resumed) == digest(undisturbed)
    print("the weights are equal" if equal else "the weights differ", "to those of an uninterrupted run")
