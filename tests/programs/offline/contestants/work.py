"""What several programs of a job do in the same way; it imports nothing of stagepipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

CALLS = "calls.txt"
"""The file in the current folder with a line for each item that was worked on, by whatever process."""
IMAGE_SIZE = 128
EMBEDDING_SIZE = 64


def note(name: object) -> bool:
    """Add a line to the file of calls; a line is written whole, by any number of processes."""
    fd = os.open(CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, f"{name}\n".encode())
    finally:
        os.close(fd)
    return True


def note_document(item: dict[str, Any]) -> bool:
    """Note a document by its id."""
    return note(item["id"])


def note_path(item: dict[str, Any]) -> bool:
    """Note a file by its name."""
    return note(Path(item["path"]).name)


def make_network() -> Any:
    """Return a small convolutional network with fixed random weights: (n, 3, 128, 128) to (n, 64)."""
    import torch

    torch.manual_seed(17)
    layers: list[Any] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [torch.nn.Conv2d(before, after, 3, stride=2, padding=1), torch.nn.ReLU()]
    pool = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, EMBEDDING_SIZE)]
    return torch.nn.Sequential(*layers, *pool).eval()


class Embedder:
    """Called with paths of images, it returns their embeddings: float32 of shape (n, 64)."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self._network = make_network()

    def __call__(self, paths: list[str]) -> np.ndarray:
        """Return a row for each path."""
        import torch
        from PIL import Image

        pictures = []
        for path in paths:
            note(Path(path).name)
            with Image.open(path) as opened:
                picture = opened.convert("RGB").resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR)
            pictures.append(np.asarray(picture, np.float32).transpose(2, 0, 1) / 255)
        with torch.inference_mode():
            return self._network(torch.from_numpy(np.stack(pictures))).numpy()


SAMPLE_RATE = 16_000
MEL_BANDS = 64
_WINDOW, _HOP, _FFT = 400, 160, 512


def make_mel_filters() -> np.ndarray:
    """Return triangular filters on the mel scale of HTK: float32 of shape (frequencies, bands)."""
    top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MEL_BANDS + 2) / 2595) - 1)
    frequencies = np.linspace(0, SAMPLE_RATE / 2, _FFT // 2 + 1)[:, np.newaxis]
    rising = (frequencies - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - frequencies) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


class LogMel:
    """Called with samples at 16 kHz, of shape (n,) or (n, channels), it returns float32 of shape (frames, 64)."""

    def __init__(self) -> None:
        self._filters = make_mel_filters()
        self._window = np.hanning(_WINDOW).astype(np.float32)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return the logarithm of the energy in each band of each frame."""
        mono = samples if samples.ndim == 1 else samples.mean(axis=1)
        frames = np.lib.stride_tricks.sliding_window_view(mono, _WINDOW)[::_HOP] * self._window
        power = np.abs(np.fft.rfft(frames, _FFT)) ** 2
        return np.log(power.astype(np.float32) @ self._filters + 1e-6)
