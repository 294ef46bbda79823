"""Audio and video containers beside soundfile, PyAV, SciPy, opencv and FFmpeg's filters.

`audio.Decode` decodes with soundfile, so it is compared with PyAV's decoders; `video.DecodeClips` decodes with PyAV,
so it is compared with opencv's `VideoCapture`.
"""

from __future__ import annotations

import io
import struct
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import scipy.io.wavfile
import scipy.signal
import soundfile

from stagepipe.stages import audio
from stagepipe.stages.video import DecodeClips
from tests.differential.cell import Cell

RATE = 8_000
_TIMES_S = np.arange(RATE // 2) / RATE
TONE = (np.sin(2 * np.pi * 440 * _TIMES_S) / 2).astype(np.float32)
STEREO = np.stack([TONE, -TONE / 2], axis=1)


def write_audio(file_format: str, subtype: str, samples: np.ndarray = TONE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=file_format, subtype=subtype)
    return file.getvalue()


def write_mp3_without_length() -> bytes:
    """A muxer that cannot seek writes no Xing header."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.data += data
            return len(data)

    pipe = Pipe()
    with av.open(pipe, "w", format="mp3", options={"write_xing": "0"}) as container:
        stream = container.add_stream("mp3", rate=RATE)
        frame = av.AudioFrame.from_ndarray(TONE[np.newaxis], format="fltp", layout="mono")
        frame.sample_rate = RATE
        for part in (frame, None):
            container.mux(stream.encode(part))
    return bytes(pipe.data)


def read_with_av(data: bytes, sample_format: str = "fltp") -> dict[str, Any]:
    """Decode with FFmpeg's own decoders."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format=sample_format)
        frames = [part for frame in container.decode(stream) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
        samples = np.concatenate([frame.to_ndarray() for frame in frames], axis=1)
    channels = stream.codec_context.channels
    shaped = samples.T if sample_format.endswith("p") else samples.reshape(-1, channels)
    return {"samples": np.ascontiguousarray(shaped), "sample_rate": stream.rate}


def read_wav_with_scipy(data: bytes) -> dict[str, Any]:
    with warnings.catch_warnings():  # it says that it skips the chunk `PEAK`
        warnings.simplefilter("ignore", scipy.io.wavfile.WavFileWarning)
        rate, samples = scipy.io.wavfile.read(io.BytesIO(data))
    return {"samples": samples.reshape(len(samples), -1), "sample_rate": rate}


AUDIO: dict[tuple[str, str], float] = {
    **{("WAV", subtype): 0.0 for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")},
    **{("WAV", subtype): 0.0 for subtype in ("ULAW", "ALAW", "IMA_ADPCM")},
    ("WAV", "MS_ADPCM"): 0.005,
    ("WAVEX", "PCM_16"): 0.0,
    ("RF64", "PCM_16"): 0.0,
    ("W64", "PCM_16"): 0.0,
    ("AIFF", "PCM_16"): 0.0,
    ("AIFF", "FLOAT"): 0.0,
    ("AU", "PCM_16"): 0.0,
    ("AU", "ULAW"): 0.0,
    ("CAF", "PCM_16"): 0.0,
    ("SVX", "PCM_16"): 0.0,
    ("NIST", "PCM_16"): 0.0,
    ("VOC", "PCM_16"): 0.0,
    ("FLAC", "PCM_S8"): 0.0,
    ("FLAC", "PCM_16"): 0.0,
    ("FLAC", "PCM_24"): 0.0,
    ("MP3", "MPEG_LAYER_III"): 1e-5,
}
"""Format, subtype, and what two decoders may differ by."""
MONO_ONLY = {"SVX"}
DIFFERENT: dict[tuple[str, str], tuple[str, Callable[[], dict[str, Any]], float]] = {
    ("OGG", "VORBIS"): (
        "PyAV gives the last block whole, beyond the end that the file says",
        lambda: (made := read_with_av(write_audio("OGG", "VORBIS"))) | {"samples": made["samples"][: len(TONE)]},
        1e-5,
    ),
    ("OGG", "OPUS"): (
        "soundfile gives the rate at which it was recorded, FFmpeg 48,000 Hz",
        lambda: {"samples": read_opus_at_its_rate(), "sample_rate": RATE},
        0.1,  # at the end, where the filter of `resample_poly` sees zeros
    ),
}
"""With the note, what must come instead, and what it may differ by."""


def read_opus_at_its_rate() -> np.ndarray:
    return scipy.signal.resample_poly(read_with_av(write_audio("OGG", "OPUS"))["samples"], RATE, 48_000)


def make_audio_cells() -> list[Cell]:
    group = "Audio"
    cells = [
        Cell(
            group=group, case=f"{file_format} {subtype}, {len(samples.shape)} channel(s)", library="PyAV",
            tolerance=tolerance,
            ours=lambda folder, f=file_format, s=subtype, x=samples: audio.Decode(mono=False)(write_audio(f, s, x)),
            theirs=lambda folder, f=file_format, s=subtype, x=samples: read_with_av(write_audio(f, s, x)),
        )
        for (file_format, subtype), tolerance in AUDIO.items()
        for samples in ((TONE,) if file_format in MONO_ONLY or subtype == "MS_ADPCM" else (TONE, STEREO))
        if samples is TONE or subtype in {"PCM_16", "PCM_24", "FLOAT", "MPEG_LAYER_III"}
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"{file_format} {subtype}", library="PyAV", outcome="different", note=note,
            ours=lambda folder, f=file_format, s=subtype: audio.Decode(mono=False)(write_audio(f, s)),
            theirs=lambda folder, f=file_format, s=subtype: read_with_av(write_audio(f, s)),
            expected=lambda folder, e=expected: e(), tolerance=tolerance,
        )
        for (file_format, subtype), (note, expected, tolerance) in DIFFERENT.items()
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"{file_format} {subtype} as {dtype}", library="PyAV", tolerance=tolerance,
            ours=lambda folder, f=file_format, s=subtype, d=dtype: audio.Decode(mono=False, dtype=d)(
                write_audio(f, s, STEREO)
            ),
            theirs=lambda folder, f=file_format, s=subtype, a=av_format: read_with_av(write_audio(f, s, STEREO), a),
        )
        for file_format, subtype in (("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"),
                                     ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III"))
        for dtype, av_format, tolerance in (
            ("int16", "s16", 1.0), ("int32", "s32", 2.0**17 if file_format == "MP3" else 512.0)
        )
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"WAV {subtype} as {dtype}", library="SciPy",
            ours=lambda folder, s=subtype, d=dtype: audio.Decode(mono=False, dtype=d)(write_audio("WAV", s, STEREO)),
            theirs=lambda folder, s=subtype: read_wav_with_scipy(write_audio("WAV", s, STEREO)),
        )
        for subtype, dtype in (
            ("PCM_16", "int16"), ("PCM_24", "int32"), ("PCM_32", "int32"), ("FLOAT", "float32"), ("DOUBLE", "float64")
        )
    ]  # fmt: skip
    wav = write_audio("WAV", "FLOAT", STEREO)
    part = slice(round(0.1 * RATE), round(0.3 * RATE))
    cells += [
        Cell(
            group=group, case="OGG OPUS, without its ends", library="PyAV", tolerance=0.001,
            ours=lambda folder: audio.Decode(mono=False)(write_audio("OGG", "OPUS"))["samples"][100:-100],
            theirs=lambda folder: read_opus_at_its_rate()[100:-100],
        ),
        Cell(
            group=group, case="WAV GSM610, its 13 blocks", library="PyAV",
            ours=lambda folder: audio.Decode(mono=False)(write_audio("WAV", "GSM610"))["samples"][: 13 * 320],
            theirs=lambda folder: read_with_av(write_audio("WAV", "GSM610"))["samples"],
        ),
        Cell(
            group=group, case="WAV GSM610, number of samples", library="PyAV", outcome="different",
            note="soundfile gives 320 samples more after an odd number of blocks, which the file does not hold",
            ours=lambda folder: len(audio.Decode()(write_audio("WAV", "GSM610"))["samples"]),
            theirs=lambda folder: len(read_with_av(write_audio("WAV", "GSM610"))["samples"]),
            expected=lambda folder: 14 * 320,
        ),
        Cell(
            group=group, case="the mean of the channels", library="SciPy", tolerance=1e-7,
            ours=lambda folder: audio.Decode()(wav)["samples"],
            theirs=lambda folder: read_wav_with_scipy(wav)["samples"].mean(axis=1),
        ),
        *(
            Cell(
                group=group, case=f"{file_format} {subtype}, 0.1 s to 0.3 s", library="PyAV", tolerance=tolerance,
                ours=lambda folder, f=file_format, s=subtype: audio.Decode(start_s=0.1, duration_s=0.2)(
                    write_audio(f, s)
                )["samples"],
                theirs=lambda folder, f=file_format, s=subtype: read_with_av(write_audio(f, s))["samples"][part, 0],
            )
            for file_format, subtype, tolerance in (
                ("WAV", "PCM_16", 0.0), ("FLAC", "PCM_16", 0.0), ("OGG", "VORBIS", 1e-5), ("AIFF", "PCM_16", 0.0)
            )
        ),
        Cell(
            group=group, case="Resample of a tone from 8 to 16 kHz", library="SciPy", tolerance=0.01,
            ours=lambda folder: audio.Resample(2 * RATE)({"samples": TONE, "sample_rate": RATE})["samples"][800:-800],
            theirs=lambda folder: scipy.signal.resample_poly(TONE, 2, 1)[800:-800],
        ),
    ]  # fmt: skip
    return cells


def cut(data: bytes, share: float = 0.5) -> bytes:
    return data[: int(share * len(data))]


_HEADER = "bytes that its header says"
_DATA = "bytes that its chunk `data` says"
_REFUSED = "soundfile cannot decode"
CUT: dict[tuple[str, str], tuple[str, str]] = {
    **{("WAV", subtype): (_DATA, _DATA) for subtype in ("PCM_16", "FLOAT", "MS_ADPCM")},
    ("RF64", "PCM_16"): (_DATA, _DATA),
    ("W64", "PCM_16"): (_DATA, _DATA),
    ("AIFF", "PCM_16"): ("bytes that its chunk `SSND` says",) * 2,
    ("SVX", "PCM_16"): ("bytes that its chunk `BODY` says",) * 2,
    ("AU", "PCM_16"): (_HEADER, _HEADER),
    ("NIST", "PCM_16"): (_HEADER, _HEADER),
    ("CAF", "PCM_16"): (_REFUSED, _DATA),
    ("FLAC", "PCM_16"): ("flac decoder lost sync",) * 2,
    ("OGG", "VORBIS"): (_REFUSED, "its last page is cut, or does not end the stream"),
    ("MP3", "MPEG_LAYER_III"): ("bytes that its Xing header says",) * 2,
}
"""What the error of half of the file says, and that of 95%."""


def make_cut_audio_cells() -> list[Cell]:
    group = "Audio that is cut"
    cells = [
        Cell(
            group=group, case=f"{share:.0%} of {file_format} {subtype}", library="-", outcome="error", note=note,
            ours=lambda folder, f=file_format, s=subtype, x=share: audio.Decode()(cut(write_audio(f, s), x)),
        )
        for (file_format, subtype), notes in CUT.items()
        for share, note in zip((0.5, 0.95), notes, strict=True)
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"half of {file_format} {subtype}, `truncated: keep`", library="PyAV",
            tolerance=tolerance,
            ours=lambda folder, f=file_format, s=subtype: audio.Decode(mono=False, truncated="keep")(
                cut(write_audio(f, s))
            ),
            theirs=lambda folder, f=file_format, s=subtype: read_with_av(cut(write_audio(f, s))),
        )
        for file_format, subtype, tolerance in (("WAV", "PCM_16", 0.0), ("WAV", "FLOAT", 0.0), ("AU", "PCM_16", 0.0))
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case="half of WAV PCM_16, its first 0.1 s", library="PyAV",
            ours=lambda folder: audio.Decode(duration_s=0.1)(cut(write_audio("WAV", "PCM_16")))["samples"],
            theirs=lambda folder: read_with_av(write_audio("WAV", "PCM_16"))["samples"][: RATE // 10, 0],
        ),
        Cell(
            group=group, case="half of an MP3 without a Xing header", library="PyAV", outcome="different",
            note="such a file does not say how long it is: the page of audio.Decode says that this is not noticed",
            ours=lambda folder: audio.Decode()(cut(write_mp3_without_length()))["samples"].shape,
            theirs=lambda folder: read_with_av(write_mp3_without_length())["samples"][:, 0].shape,
            expected=lambda folder: read_with_av(cut(write_mp3_without_length()))["samples"][576:, 0].shape,
        ),
        Cell(
            group=group, case="a WAV whose writer was stopped", library="-", outcome="error",
            note="its header says 0 bytes of samples, and 8,000 follow",
            ours=lambda folder: audio.Decode()(set_wav_length(0)),
        ),
        *(
            Cell(
                group=group, case=f"a WAV that was written into a pipe, length {length:#x}", library="PyAV",
                ours=lambda folder, n=length: audio.Decode(mono=False)(set_wav_length(n)),
                theirs=lambda folder: read_with_av(write_audio("WAV", "PCM_16")),
            )
            for length in (0xFFFF_FFFF, 0x7FFF_F000)
        ),
    ]  # fmt: skip
    return cells


def set_wav_length(length: int) -> bytes:
    data = write_audio("WAV", "PCM_16")
    start = data.index(b"data") + 4
    return data[:start] + struct.pack("<I", length) + data[start + 4 :]


FRAMES = 10
HEIGHT, WIDTH = 32, 64


def draw(number: int) -> np.ndarray:
    """A white corner, and colors that change slowly: the half of their resolution that most codecs drop is not seen."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    picture = np.stack([rows * 4, columns * 3, np.full_like(rows, 20 * number)], axis=-1).astype(np.uint8)
    picture[:8, :8] = 255
    return picture


def write_video(container_format: str, codec: str, pixel_format: str, **options: str) -> bytes:
    """Write a video; to put the index first, FFmpeg opens the file by its name."""
    with tempfile.NamedTemporaryFile() as file:
        _write_video(file.name, container_format, codec, pixel_format, options)
        return Path(file.name).read_bytes()


def _write_video(path: str, container_format: str, codec: str, pixel_format: str, options: dict[str, str]) -> None:
    with av.open(path, "w", format=container_format, options=options) as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pixel_format
        for number in range(FRAMES):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(draw(number), format="rgb24")))
        container.mux(stream.encode())


def write_marked(a: int = 1, b: int = 0, c: int = 0, d: int = 1) -> bytes:
    """Write a lossless MOV with this display matrix."""
    data = write_video("mov", "png", "rgb24")
    start = data.index(b"tkhd") + 44
    one = 1 << 16
    matrix = struct.pack(">9i", round(a * one), round(b * one), 0, round(c * one), round(d * one), 0, 0, 0, 1 << 30)
    return data[:start] + matrix + data[start + len(matrix) :]


def decode(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return list(DecodeClips(**{"frames": FRAMES, **options})(data))


def read_with_opencv(folder: Path, data: bytes) -> list[np.ndarray]:
    path = folder / "video"
    path.write_bytes(data)
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (read := capture.read())[0]:
        frames.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
    return frames


def filter_with_av(data: bytes, *filters: str) -> np.ndarray:
    """Turn the stored frames with FFmpeg's filters."""
    turned = []
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        graph = av.filter.Graph()
        nodes = [graph.add_buffer(template=stream), *(graph.add(*name.split("=")) for name in filters)]
        nodes.append(graph.add("buffersink"))
        graph.link_nodes(*nodes).configure()
        for frame in container.decode(stream):
            graph.push(frame)
            turned.append(graph.pull().to_ndarray(format="rgb24"))
    return np.stack(turned)


VIDEO: dict[str, tuple[tuple[str, str, str], float]] = {
    "MP4, MPEG-4": (("mp4", "mpeg4", "yuv420p"), 0.0),
    "MP4, H.264": (("mp4", "libx264", "yuv420p"), 0.0),
    "MP4, H.264, full range": (("mp4", "libx264", "yuvj420p"), 0.0),
    "MP4, H.264, 4:4:4": (("mp4", "libx264", "yuv444p"), 1.0),
    "MP4, H.264, grey": (("mp4", "libx264", "gray"), 1.0),
    "MP4, H.264, RGB": (("mp4", "libx264rgb", "rgb24"), 0.0),
    "MOV, PNG": (("mov", "png", "rgb24"), 0.0),
    "MOV, PNG with alpha": (("mov", "png", "rgba"), 0.0),
    "MOV, QuickTime RLE with alpha": (("mov", "qtrle", "argb"), 0.0),
    "WebM, VP9": (("webm", "libvpx-vp9", "yuv420p"), 0.0),
    "WebM, VP9 with alpha": (("webm", "libvpx-vp9", "yuva420p"), 0.0),
    "Matroska, FFV1": (("matroska", "ffv1", "yuv420p"), 0.0),
    "Matroska, FFV1 of 16 bits": (("matroska", "ffv1", "yuv444p16le"), 4.0),
    "AVI, Motion JPEG": (("avi", "mjpeg", "yuvj420p"), 0.0),
    "AVI, FFV1, grey": (("avi", "ffv1", "gray"), 0.0),
    "AVI, FFV1, grey of 16 bits": (("avi", "ffv1", "gray16le"), 1.0),
    "MPEG-TS, MPEG-2": (("mpegts", "mpeg2video", "yuv420p"), 0.0),
    "GIF": (("gif", "gif", "rgb8"), 0.0),
}
LOSSLESS: dict[str, tuple[tuple[str, str, str], float]] = {
    "MOV, PNG": (("mov", "png", "rgb24"), 0.0),
    "MOV, PNG with alpha": (("mov", "png", "rgba"), 0.0),
    "MOV, QuickTime RLE with alpha": (("mov", "qtrle", "argb"), 0.0),
    "Matroska, FFV1 of RGB": (("matroska", "ffv1", "bgr0"), 0.0),
    "MP4, H.264, 4:4:4": (("mp4", "libx264", "yuv444p"), 20.0),
}
"""Beside what was drawn, since opencv decodes with FFmpeg too; with the loss of the last."""
MATRICES: dict[str, tuple[tuple[int, int, int, int], tuple[str, ...]]] = {
    "as it is": ((1, 0, 0, 1), ()),
    "90 clockwise": ((0, 1, -1, 0), ("transpose=clock",)),
    "180": ((-1, 0, 0, -1), ("hflip", "vflip")),
    "270 clockwise": ((0, -1, 1, 0), ("transpose=cclock",)),
    "mirrored": ((-1, 0, 0, 1), ("hflip",)),
    "upside down": ((1, 0, 0, -1), ("vflip",)),
    "90 clockwise and mirrored": ((0, 1, 1, 0), ("transpose=clock", "hflip")),
    "270 clockwise and mirrored": ((0, -1, -1, 0), ("transpose=cclock", "hflip")),
}


_MIRRORED: dict[str, Any] = {
    "outcome": "different", "note": "opencv turns a mirrored frame by 180 degrees",
    "expected": lambda folder: filter_with_av(write_marked(), "hflip"),
}  # fmt: skip


def make_video_cells() -> list[Cell]:
    group = "Video"
    cells = [
        Cell(
            group=group, case=name, library="opencv", tolerance=tolerance,
            ours=lambda folder, m=made: decode(write_video(*m))[0]["frames"],
            theirs=lambda folder, m=made: np.stack(read_with_opencv(folder, write_video(*m))),
        )
        for name, (made, tolerance) in VIDEO.items()
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"display matrix, {name}", library="FFmpeg's filters",
            ours=lambda folder, m=matrix: decode(write_marked(*m))[0]["frames"],
            theirs=lambda folder, f=filters: filter_with_av(write_marked(), *f),
        )
        for name, (matrix, filters) in MATRICES.items()
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=f"display matrix, {name}", library="opencv",
            ours=lambda folder, m=MATRICES[name][0]: decode(write_marked(*m))[0]["frames"],
            theirs=lambda folder, m=MATRICES[name][0]: np.stack(read_with_opencv(folder, write_marked(*m))),
            **(_MIRRORED if name == "mirrored" else {}),
        )
        for name in ("90 clockwise", "180", "270 clockwise", "mirrored")
    ]  # fmt: skip
    cells += [
        Cell(
            group=group, case=name, library="NumPy", tolerance=tolerance,
            ours=lambda folder, m=made: decode(write_video(*m))[0]["frames"],
            theirs=lambda folder: np.stack([draw(number) for number in range(FRAMES)]),
        )
        for name, (made, tolerance) in LOSSLESS.items()
    ]  # fmt: skip
    plain = write_marked()
    cells += [
        Cell(
            group=group, case="display matrix, 90 clockwise, scaled", library="opencv", tolerance=3,
            ours=lambda folder: decode(write_marked(0, 1, -1, 0), size=[32, 16])[0]["frames"][:, 8:, :-8],
            theirs=lambda folder: np.stack([
                cv2.resize(frame, (16, 32), interpolation=cv2.INTER_AREA)
                for frame in read_with_opencv(folder, write_marked(0, 1, -1, 0))
            ])[:, 8:, :-8],
        ),
        Cell(
            group=group, case="display matrix, 37 degrees", library="-", outcome="error",
            note="the display matrix rotates the frames by 36 degrees",
            ours=lambda folder: decode(write_marked(0.8, 0.6, -0.6, 0.8)),
        ),
        Cell(
            group=group, case="clips of 4 frames, every second", library="opencv",
            ours=lambda folder: [clip["frames"] for clip in decode(plain, frames=2, stride=2)],
            theirs=lambda folder: [
                np.stack(read_with_opencv(folder, plain)[start : start + 4 : 2]) for start in (0, 4)
            ],
        ),
        Cell(
            group=group, case="the last frame repeated", library="opencv",
            ours=lambda folder: decode(plain, frames=8, last="repeat")[1]["frames"],
            theirs=lambda folder: np.stack([*(frames := read_with_opencv(folder, plain))[8:], *([frames[-1]] * 6)]),
        ),
        Cell(
            group=group, case="start and rate of clips", library="opencv", tolerance=1e-6,
            ours=lambda folder: [(clip["start_s"], clip["frame_rate"]) for clip in decode(plain, frames=5)],
            theirs=lambda folder: read_starts_with_opencv(folder, plain, 5),
        ),
    ]  # fmt: skip
    return cells


def read_starts_with_opencv(folder: Path, data: bytes, frames: int) -> list[tuple[float, float]]:
    path = folder / "video"
    path.write_bytes(data)
    capture = cv2.VideoCapture(str(path))
    starts_s = []
    while capture.read()[0]:
        starts_s.append(capture.get(cv2.CAP_PROP_POS_MSEC) / 1000)
    return [(start_s, capture.get(cv2.CAP_PROP_FPS)) for start_s in starts_s[::frames]]


def make_cut_video_cells() -> list[Cell]:
    group = "Video that is cut"
    made: dict[str, tuple[Callable[[], bytes], str]] = {
        "MP4, its index first": (
            lambda: write_video("mp4", "mpeg4", "yuv420p", movflags="faststart"), "bytes that its box"
        ),
        "MP4, its index last": (lambda: write_video("mp4", "mpeg4", "yuv420p"), "PyAV cannot decode"),
        "MP4, fragmented": (
            lambda: write_video("mp4", "mpeg4", "yuv420p", movflags="frag_every_frame+empty_moov"), "is cut: it ends"
        ),
        "MOV, its index first": (
            lambda: write_video("mov", "png", "rgb24", movflags="faststart"), "bytes that its box `mdat` says"
        ),
        "Matroska": (lambda: write_video("matroska", "ffv1", "yuv420p"), "bytes that its segment says"),
        "WebM": (lambda: write_video("webm", "libvpx-vp9", "yuv420p"), "bytes that its segment says"),
        "AVI": (lambda: write_video("avi", "mjpeg", "yuvj420p"), "bytes that its chunk `RIFF` says"),
    }  # fmt: skip
    cells = [
        Cell(
            group=group, case=f"{share:.0%} of {name}", library="-", outcome="error", note=note,
            ours=lambda folder, m=make, x=share: decode(cut(m(), x), frames=1),
        )
        for name, (make, note) in made.items()
        for share in (0.7, 0.9)
    ]  # fmt: skip
    avi = made["AVI"][0]
    transport = ("mpegts", "mpeg2video", "yuv420p")
    cells += [
        Cell(
            group=group, case="90% of AVI, `truncated: keep`", library="opencv",
            ours=lambda folder: decode(cut(avi(), 0.9), frames=2, max_clips=1, truncated="keep")[0]["frames"],
            theirs=lambda folder: np.stack(read_with_opencv(folder, avi())[:2]),
        ),
        Cell(
            group=group, case="half of MPEG-TS", library="opencv", outcome="different",
            note="such a file does not say how long it is: the page of video.DecodeClips says that this is not noticed",
            ours=lambda folder: len(decode(cut(write_video(*transport)), frames=1)),
            theirs=lambda folder: len(read_with_opencv(folder, write_video(*transport))),
            expected=lambda folder: len(read_with_opencv(folder, cut(write_video(*transport)))),
        ),
        Cell(
            group=group, case="a file without video", library="-", outcome="error", note="holds no video",
            ours=lambda folder: decode(write_audio("WAV", "PCM_16")),
        ),
    ]  # fmt: skip
    return cells


CELLS: tuple[Cell, ...] = (
    *make_audio_cells(),
    *make_cut_audio_cells(),
    *make_video_cells(),
    *make_cut_video_cells(),
)
