"""A file of audio or video that ends before its structure says is noticed, and a whole one is let through."""

import io
import struct

import av
import numpy as np
import pytest
import soundfile

from stagepipe.stages import audio
from stagepipe.stages.file_ends import describe_cut
from stagepipe.stages.video import DecodeClips

NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, (8_000, 2)).astype(np.float32)


def make_audio(file_format, subtype=None):
    file = io.BytesIO()
    samples = NOISE[:, 0] if file_format == "SVX" else NOISE
    soundfile.write(file, samples, 8_000, format=file_format, subtype=subtype)
    return file.getvalue()


def make_video(container_format, codec="mpeg4"):
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(30):
            pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


AUDIO = [
    ("WAV", "PCM_16"),
    ("WAV", "MS_ADPCM"),
    ("RF64", "PCM_16"),
    ("W64", "PCM_16"),
    ("AIFF", "PCM_16"),
    ("SVX", "PCM_16"),
    ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
    ("NIST", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
]


@pytest.mark.parametrize("file_format, subtype", AUDIO)
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_cut_recording_is_noticed(file_format, subtype, share, tmp_path):
    data = make_audio(file_format, subtype)
    cut = data[: int(share * len(data))]
    assert describe_cut(io.BytesIO(data)) == ""
    assert describe_cut(io.BytesIO(cut)).startswith(("it has ", "its last page is cut"))
    path = tmp_path / "a"
    path.write_bytes(cut)
    assert describe_cut(str(path)) == describe_cut(io.BytesIO(cut))


@pytest.mark.parametrize("container_format", ["mp4", "mov", "matroska", "avi"])
def test_a_cut_video_is_noticed(container_format):
    data = make_video(container_format)
    assert describe_cut(io.BytesIO(data)) == ""
    assert "bytes that its" in describe_cut(io.BytesIO(data[: len(data) // 2]))


def test_a_stage_refuses_half_a_recording_or_keeps_it():
    data = make_audio("WAV", "PCM_16")
    half = data[: len(data) // 2]
    words = r"audio\.Decode: .* is cut: it has 15,978 of the 32,000 bytes that its chunk `data` says; fetch it again"
    with pytest.raises(ValueError, match=words):
        audio.Decode()(half)
    kept = audio.Decode(truncated="keep")(half)["samples"]
    np.testing.assert_array_equal(kept, audio.Decode()(data)["samples"][: len(kept)])
    assert len(kept) == 15_978 // 4


def test_a_part_that_is_there_is_decoded_and_one_beyond_the_end_is_not():
    data = make_audio("WAV", "PCM_16")
    half = data[: len(data) // 2]
    part = audio.Decode(start_s=0.1, duration_s=0.2)
    np.testing.assert_array_equal(part(half)["samples"], part(data)["samples"])
    for options in ({"start_s": 0.4, "duration_s": 0.2}, {"start_s": 0.7}):
        with pytest.raises(ValueError, match="is cut: it has 15,978 of the 32,000 bytes"):
            audio.Decode(**options)(half)


def test_a_stage_refuses_half_a_video_or_keeps_it():
    data = make_video("matroska")
    half = data[: len(data) // 2]
    with pytest.raises(ValueError, match=r"video\.DecodeClips: .* is cut: it has .* bytes that its segment says"):
        list(DecodeClips(frames=5)(half))
    kept = list(DecodeClips(frames=5, truncated="keep")(half))
    assert 0 < len(kept) < len(list(DecodeClips(frames=5)(data)))


def wav(samples, size, after=b""):
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + size % 2**31, b"WAVE", b"fmt ", 16, 1, 1, 8_000, 8_000, 1, 8)
    return head + b"data" + struct.pack("<I", size) + bytes([128] * samples) + after


@pytest.mark.parametrize(
    "data, cut",
    [
        (wav(6, 0xFFFF_FFFF), ""),
        (wav(6, 0x7FFF_F000), ""),
        (wav(5, 5), ""),
        (wav(0, 0), ""),
        (wav(0, 0, b"LIST\4\0\0\0INFO"), ""),
        (wav(6, 7), "it has 6 of the 7 bytes that its chunk `data` says"),
        (wav(6, 0), "its header says 0 bytes of samples, and 6 follow: its writer was stopped"),
        (b"", ""),
        (b"RIFF", ""),
        (b"caff", ""),
        (b".snd", ""),
        (b"NIST_1A\nnothing", ""),
        (b"\x1aE\xdf\xa3", ""),
        (b"\0\0\0\1ftyp", ""),
    ],
)
def test_a_length_that_is_not_known_is_none_to_be_missed(data, cut):
    assert describe_cut(io.BytesIO(data)) == cut


def test_a_tag_behind_the_last_page_of_an_ogg_is_no_cut():
    data = make_audio("OGG", "VORBIS")
    assert describe_cut(io.BytesIO(data + b"TAG" + bytes(125))) == ""


@pytest.mark.parametrize("file_format, subtype", [("WAV", "GSM610"), ("XI", "DPCM_16")])
def test_a_compressed_file_that_cannot_seek_is_decoded(file_format, subtype):
    file = io.BytesIO()
    soundfile.write(file, NOISE[:, 0], 8_000, format=file_format, subtype=subtype)
    assert abs(len(audio.Decode()(file.getvalue())["samples"]) - len(NOISE)) <= 320
