"""Trains a small network on the batches of image_training.yaml.

From the root of the repository:

    python scripts/make_images.py
    python examples/image_training/train_on_images.py
"""

from pathlib import Path

import torch
from torch import nn

from stagepipe.torch import Loader

CONFIG = Path(__file__).with_name("image_training.yaml")
IMAGES = Path("data/images")


def train(loader: Loader, epochs: int) -> float:
    """Train for some epochs, and return the last loss."""
    labels = sorted(path.name for path in IMAGES.iterdir() if path.is_dir())
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, len(labels)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(torch.inf)
    for epoch in range(epochs):
        for batch in loader:
            targets = torch.tensor([labels.index(label) for label in batch["label"]])
            loss = nn.functional.cross_entropy(model(batch["data"]), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.2f}")
    return loss.item()


if __name__ == "__main__":
    with Loader(CONFIG) as batches:
        train(batches, epochs=2)
