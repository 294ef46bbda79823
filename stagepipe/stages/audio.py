"""Stages for audio: `Decode` and `Resample`.

A recording is a dict `{"samples": array, "sample_rate": hertz}`. The samples of one channel have the shape (frames,),
samples of several channels (frames, channels).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np

from stagepipe.core import TargetError
from stagepipe.stages.file_ends import check_whole
from stagepipe.stages.optional_packages import (
    check_choice,
    check_positive,
    describe_value,
    open_input,
    read_input,
    require,
)

AudioBackend = Literal["soundfile", "torchcodec"]
SampleType = Literal["float32", "float64", "int16", "int32"]
ResampleQuality = Literal["quick", "low", "medium", "high", "very high"]

_BACKENDS: Final = ("soundfile", "torchcodec")
_FLOATING: Final = ("FLOAT", "DOUBLE")
_SAMPLE_TYPES: Final = ("float32", "float64", "int16", "int32")
_SOXR_QUALITIES: Final = {"quick": "QQ", "low": "LQ", "medium": "MQ", "high": "HQ", "very high": "VHQ"}


class DecodeAudio:
    """Decode an audio file (WAV, FLAC, Ogg, MP3). In YAML it is `stagepipe.stages.audio.Decode`.

    The input is a path or the bytes of a file. The output is `{"samples": array, "sample_rate": hertz}`; floating-point
    samples are between -1 and 1.

    Args:
        mono: return the mean of the channels, of shape (frames,). False: shape (frames, channels).
        start_s: the start of the part to read, in seconds.
        duration_s: the seconds to read; None for all. A shorter file returns fewer samples.
        dtype: the type of the samples: `float32`, `float64`, `int16` or `int32`, whose whole range stands for -1 to 1.
            `mono` needs a floating-point type.
        backend: the library that decodes: `soundfile`, or `torchcodec`, which `torchaudio.load` uses too. `torchcodec`
            also decodes AAC, M4A and the sound of videos. It needs the libraries of FFmpeg, decodes the whole file to
            cut out a part, and returns only `float32`; an Ogg file may get up to a block of frames more at the end.
        truncated: `refuse` a file that is shorter than its header says, or `keep` its content. A requested part that
            exists is always decoded. Formats without a length are not checked: AAC, MP3 without a Xing header, and WAV
            and WebM written to a pipe.

    For a WAV file with GSM 6.10 and an odd number of blocks, `soundfile` returns 320 extra samples at the end.

    >>> import io, numpy, soundfile
    >>> file = io.BytesIO()
    >>> soundfile.write(file, numpy.zeros(800), 8000, format="WAV")
    >>> recording = DecodeAudio(duration_s=0.05)(file.getvalue())
    >>> recording["samples"].shape, recording["sample_rate"]
    ((400,), 8000)

    Raises TargetError if the library is not installed, ValueError for bytes that it cannot decode and for a truncated
    file, and FileNotFoundError.
    """

    def __init__(
        self,
        *,
        mono: bool = True,
        start_s: float = 0.0,
        duration_s: float | None = None,
        dtype: SampleType = "float32",
        backend: AudioBackend = "soundfile",
        truncated: Literal["refuse", "keep"] = "refuse",
    ) -> None:
        check_choice(dtype, _SAMPLE_TYPES, "dtype", "audio.Decode")
        check_choice(backend, _BACKENDS, "backend", "audio.Decode")
        check_choice(truncated, ("refuse", "keep"), "truncated", "audio.Decode")
        if backend == "torchcodec" and dtype != "float32":
            raise ValueError(f"audio.Decode: torchcodec returns float32, not {dtype}; use `backend: soundfile`")
        if mono and dtype.startswith("int"):
            raise ValueError(f"audio.Decode: `mono` returns the mean of the channels, not {dtype}; use float32")
        if start_s < 0 or (duration_s is not None and duration_s <= 0):
            raise ValueError(f"audio.Decode: start_s is {start_s}, duration_s {duration_s}; give positive seconds")
        self.mono: Final = mono
        self.start_s: Final = start_s
        self.duration_s: Final = duration_s
        self.dtype: Final = dtype
        self.backend: Final = backend
        self.truncated: Final = truncated
        self._decode: Final = self._decode_with_soundfile if backend == "soundfile" else self._decode_with_torchcodec
        if backend == "soundfile":
            require("soundfile", "audio.Decode", extra="audio")
        else:
            require("torchcodec.decoders", "audio.Decode", extra="torchcodec")
            _require_ffmpeg()

    def __call__(self, data: Any) -> dict[str, Any]:
        """Return the samples and their rate."""
        open_input(data, "audio.Decode")  # its errors need no addition
        try:
            samples, rate = self._decode(data)
        except (RuntimeError, ValueError) as error:  # of both libraries
            raise ValueError(f"audio.Decode: {self.backend} cannot decode {describe_value(data)}: {error}") from error
        _, count = self._get_range(rate)
        if self.truncated == "refuse" and (count is None or len(samples) < count):
            check_whole(open_input(data, "audio.Decode"), "audio.Decode", describe_value(data))
        return {"samples": samples.mean(axis=1) if self.mono else samples, "sample_rate": rate}

    def _decode_with_soundfile(self, data: Any) -> tuple[np.ndarray, int]:
        import soundfile

        with soundfile.SoundFile(open_input(data, "audio.Decode")) as file:
            rate = int(file.samplerate)
            start, count = self._get_range(rate)
            if start:  # some compressed formats cannot seek
                file.seek(min(start, file.frames))
            everything = -1 if file.seekable() else file.frames
            wanted = everything if count is None else count
            if file.subtype in _FLOATING and self.dtype.startswith("int"):  # soundfile would cast 0.5 to 0
                return _scale(file.read(wanted, dtype="float64", always_2d=True), self.dtype), rate
            return file.read(wanted, dtype=self.dtype, always_2d=True), rate

    def _decode_with_torchcodec(self, data: Any) -> tuple[np.ndarray, int]:
        from torchcodec.decoders import AudioDecoder

        recording = AudioDecoder(read_input(data, "audio.Decode")).get_all_samples()  # FLAC in memory cannot seek
        start, count = self._get_range(recording.sample_rate)
        samples = recording.data.numpy().T[start : None if count is None else start + count]
        return np.ascontiguousarray(samples), int(recording.sample_rate)

    def _get_range(self, rate: int) -> tuple[int, int | None]:
        """Return the first frame and the number of frames; None for all."""
        return round(self.start_s * rate), None if self.duration_s is None else round(self.duration_s * rate)


def _scale(samples: np.ndarray, dtype: str) -> np.ndarray:
    """Convert samples between -1 and 1 to integers over the full range of `dtype`; louder samples are clipped."""
    limits = np.iinfo(dtype)
    return np.clip(np.rint(samples * -float(limits.min)), limits.min, limits.max).astype(dtype)


def _require_ffmpeg() -> None:
    """Raise TargetError if torchcodec cannot find FFmpeg, whose libraries it loads on first use."""
    from torchcodec.decoders import AudioDecoder

    try:
        AudioDecoder(b"")
    except (RuntimeError, ValueError, OSError) as error:
        if "Could not load libtorchcodec" in str(error):
            raise TargetError(
                "audio.Decode: torchcodec cannot find the FFmpeg libraries; install FFmpeg (`apt install ffmpeg`), or "
                "use `backend: soundfile`"
            ) from None


Decode = DecodeAudio
"""Alias of `DecodeAudio`: `uses: stagepipe.stages.audio.Decode`."""


class Resample:
    """Change the sample rate of a recording with the SoX resampler (soxr), and keep its other fields.

    Args:
        rate: the new rate in hertz, such as `16000`.
        quality: `quick`, `low`, `medium`, `high` or `very high`.

    >>> import numpy
    >>> Resample(8000)({"samples": numpy.zeros(1600, "float32"), "sample_rate": 16000})["samples"].shape
    (800,)

    Raises TargetError if soxr is not installed, and TypeError for an input that is not a recording.
    """

    def __init__(self, rate: int, *, quality: ResampleQuality = "high") -> None:
        check_choice(quality, tuple(_SOXR_QUALITIES), "quality", "audio.Resample")
        self.rate: Final = check_positive(rate, "rate", "audio.Resample")
        self.quality: Final = quality
        require("soxr", "audio.Resample", extra="audio")

    def __call__(self, recording: Any) -> dict[str, Any]:
        """Return the recording at the new rate."""
        import soxr

        if not isinstance(recording, Mapping) or not {"samples", "sample_rate"} <= recording.keys():
            found = f"a dict with the keys {list(recording)}" if isinstance(recording, Mapping) else None
            raise TypeError(
                "audio.Resample: expected a dict with `samples` and `sample_rate`, as audio.Decode returns, found "
                f"{found or describe_value(recording)}; name the field that holds it in `field`"
            )
        rate = int(recording["sample_rate"])
        samples = recording["samples"]
        if rate != self.rate:
            samples = soxr.resample(samples, rate, self.rate, quality=_SOXR_QUALITIES[self.quality])
        return {**recording, "samples": samples, "sample_rate": self.rate}
