"""Make the recordings of an example: WAV files with tones that rise and fall, of different lengths and sample rates.

    python scripts/make_audio.py --count 200 --out data/audio --seed 17

Writes OUT/00001.wav ... The same arguments make the same files; existing files are overwritten. Requires the `audio`
extra.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

RATES = (8_000, 16_000, 22_050, 44_100)  # hertz
SECONDS = (0.5, 3.0)
TONES = (100.0, 3_000.0)  # hertz


def make_recording(rng: np.random.Generator, rate: int) -> np.ndarray:
    """Return a tone that goes from one frequency to another, with a little noise: float32 samples between -1 and 1."""
    seconds = rng.uniform(*SECONDS)
    first, last = rng.uniform(*TONES, size=2)
    times = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * (first * times + (last - first) * times**2 / (2 * seconds))
    noise = rng.normal(0, 0.01, len(times))
    return np.asarray(0.5 * np.sin(phase) + noise, np.float32)


def make(out: Path, count: int, seed: int) -> str:
    """Make the files; return one line about the result."""
    import soundfile

    out.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        rng = np.random.default_rng([seed, number])
        rate = int(rng.choice(RATES))
        soundfile.write(out / f"{number:05d}.wav", make_recording(rng, rate), rate)
    return f"{out}: made {count} recordings"


def main() -> None:
    """Read the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("data/audio"))
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    print(make(arguments.out, arguments.count, arguments.seed))


if __name__ == "__main__":
    main()
