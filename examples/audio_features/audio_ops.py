"""The stage of audio_features.yaml."""

from typing import Any

import numpy as np
from scipy.signal import spectrogram


def log_spectrogram(recording: dict[str, Any], window_s: float = 0.025, step_s: float = 0.01) -> np.ndarray:
    """Return the logarithm of the power in each window: float32 of shape (windows, frequencies)."""
    rate = recording["sample_rate"]
    window, step = round(window_s * rate), round(step_s * rate)
    _, _, power = spectrogram(recording["samples"], rate, nperseg=window, noverlap=window - step)
    return np.log(power.T + 1e-10).astype(np.float32)
