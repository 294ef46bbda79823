"""The audio stages: samples as soundfile wrote them, at the rate asked for."""

import ctypes.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stagepipe.core import TargetError
from stagepipe.stages import audio
from tests.support.paths import ROOT

RATE = 8_000
TONE = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE).astype(np.float32) / 2
STEREO = np.stack([TONE, -TONE / 2], axis=1)


def encode(samples, file_format="WAV", subtype="FLOAT"):
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=file_format, subtype=subtype)
    return file.getvalue()


def test_samples_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(encode(TONE))
    for value in (path, str(path), path.read_bytes()):
        recording = audio.Decode()(value)
        assert recording["sample_rate"] == RATE
        np.testing.assert_array_equal(recording["samples"], TONE)


def test_channels_are_averaged_or_kept():
    np.testing.assert_allclose(audio.Decode()(encode(STEREO))["samples"], TONE / 4, atol=1e-7)
    np.testing.assert_array_equal(audio.Decode(mono=False)(encode(STEREO))["samples"], STEREO)


def test_a_part_of_a_file_is_read():
    decode = audio.Decode(start_s=0.25, duration_s=0.5)
    np.testing.assert_array_equal(decode(encode(TONE))["samples"], TONE[2000:6000])
    assert audio.Decode(start_s=0.75, duration_s=9)(encode(TONE))["samples"].shape == (2000,)
    assert audio.Decode(start_s=5)(encode(TONE))["samples"].shape == (0,)


@pytest.mark.parametrize("file_format, subtype", [("FLAC", "PCM_24"), ("OGG", "VORBIS")])
def test_other_formats_are_decoded(file_format, subtype):
    samples = audio.Decode()(encode(TONE, file_format, subtype))["samples"]
    assert np.abs(samples - TONE).mean() < 0.01


def test_integers_are_kept_as_they_are():
    recording = audio.Decode(mono=False, dtype="int16")(encode(TONE, subtype="PCM_16"))
    assert recording["samples"].dtype == np.int16


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize("dtype, largest", [("int16", 2**15 - 1), ("int32", 2**31 - 1)])
def test_floating_point_fills_the_range_of_integers(subtype, dtype, largest):
    loud = encode(np.float32([0.5, -0.5, 1.0, -1.0, 3.0]), subtype=subtype)
    samples = audio.Decode(mono=False, dtype=dtype)(loud)["samples"][:, 0]
    half = (largest + 1) // 2
    assert (samples.dtype, samples.tolist()) == (np.dtype(dtype), [half, -half, largest, -largest - 1, largest])


def test_bytes_that_are_no_audio_are_refused():
    with pytest.raises(ValueError, match=r"audio.Decode: soundfile cannot decode 5 bytes that begin with b'hello'"):
        audio.Decode()(b"hello")


def test_a_resampled_tone_keeps_its_pitch_and_the_other_fields():
    resampled = audio.Resample(16_000)({"samples": TONE, "sample_rate": RATE, "speaker": 3})
    assert (resampled["sample_rate"], resampled["speaker"]) == (16_000, 3)
    assert (resampled["samples"].shape, resampled["samples"].dtype) == ((16_000,), np.float32)
    assert np.argmax(np.abs(np.fft.rfft(resampled["samples"]))) == 440


def test_a_recording_at_its_rate_and_one_of_two_channels_are_resampled():
    same = audio.Resample(RATE)({"samples": TONE, "sample_rate": RATE})
    assert same["samples"] is TONE
    assert audio.Resample(4_000, quality="quick")({"samples": STEREO, "sample_rate": RATE})["samples"].shape == (
        4000,
        2,
    )


def test_values_that_are_not_recordings_are_refused():
    with pytest.raises(TypeError, match=r"audio.Resample: expected a dict with `samples` and .* keys \['data'\]"):
        audio.Resample(8_000)({"data": 1})
    with pytest.raises(TypeError, match=r"found an array of shape \(3,\)"):
        audio.Resample(8_000)(np.zeros(3))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: audio.Decode(dtype="int16"), "`mono` returns the mean of the channels, not int16"),
        (lambda: audio.Decode(duration_s=0), "give positive seconds"),
        (lambda: audio.Resample(0), "rate is 0; give a whole number of at least 1"),
        (lambda: audio.Resample(8_000, quality="best"), "quality is 'best'; give one of quick"),
    ],
)
def test_a_wrong_argument_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("module, make", [("soundfile", audio.Decode), ("soxr", lambda: audio.Resample(8_000))])
def test_a_missing_package_is_named_with_its_command(module, make, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TargetError, match=rf"requires the package {module}; run `pip install 'soundfile>="):
        make()


TORCHCODEC_SCRIPT = """
import sys
import numpy as np
from pathlib import Path
from stagepipe.stages import audio

for options in ({}, {"mono": False}, {"start_s": 0.25, "duration_s": 0.5}, {"start_s": 5}):
    for path in sys.argv[1:]:
        ours = audio.Decode(backend="torchcodec", **options)(Path(path).read_bytes())
        other = audio.Decode(**options)(path)
        assert ours["sample_rate"] == other["sample_rate"]
        assert (ours["samples"].shape, ours["samples"].dtype) == (other["samples"].shape, np.float32)
        np.testing.assert_allclose(ours["samples"], other["samples"], atol=1e-5)
try:
    audio.Decode(backend="torchcodec")(b"hello")
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torchcodec_and_soundfile_decode_the_same_samples(tmp_path):
    """FFmpeg's libraries are those that PyAV brings, under the names that torchcodec looks for."""
    import av

    libraries = tmp_path / "libraries"
    libraries.mkdir()
    bundled = Path(av.__file__).parent.parent / "av.libs"
    for path in bundled.glob("lib[as]*"):
        if match := re.fullmatch(r"(lib(?:av|sw)\w+)-\w+\.so\.(\d+).*", path.name):
            (libraries / f"{match[1]}.so.{match[2]}").symlink_to(path)
    if not (libraries / "libavutil.so.60").exists():
        pytest.skip("this PyAV brings no FFmpeg 8")
    paths = []
    for file_format, subtype in (("WAV", "FLOAT"), ("FLAC", "PCM_24")):
        path = tmp_path / f"a.{file_format.lower()}"
        path.write_bytes(encode(STEREO, file_format, subtype))
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", TORCHCODEC_SCRIPT, *paths],
        env={**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{bundled}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "audio.Decode: torchcodec cannot decode 5 bytes that begin with b'hello'" in done.stdout


def test_torchcodec_without_ffmpeg_names_the_package_to_install():
    if ctypes.util.find_library("avutil"):
        pytest.skip("FFmpeg is installed")
    with pytest.raises(TargetError, match="torchcodec cannot find the FFmpeg libraries; install FFmpeg"):
        audio.Decode(backend="torchcodec")


def test_torchcodec_gives_only_float32():
    with pytest.raises(ValueError, match="torchcodec returns float32, not int16; use `backend: soundfile`"):
        audio.Decode(backend="torchcodec", mono=False, dtype="int16")
