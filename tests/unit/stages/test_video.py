"""Clips of a video: the right frames, in order, of a fixed number."""

import io
import struct
import sys
from fractions import Fraction

import av
import numpy as np
import pytest

from stagepipe.core import TargetError
from stagepipe.stages.video import DecodeClips

FRAMES, RATE = 20, 10


@pytest.fixture(scope="module")
def video():
    """The bytes of a video of 64 x 48 pixels: frame n has the grey value 10 n."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.time_base = Fraction(1, RATE)
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 10 * number, np.uint8), format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def numbers(clip):
    """The numbers of a clip's frames, from their grey values."""
    return np.rint(clip["frames"].mean(axis=(1, 2, 3)) / 10).astype(int).tolist()


def test_clips_follow_each_other_and_the_rest_is_dropped(video):
    clips = list(DecodeClips(frames=8)(video))
    assert [numbers(clip) for clip in clips] == [list(range(8)), list(range(8, 16))]
    assert [(clip["frames"].shape, clip["frames"].dtype) for clip in clips] == [((8, 48, 64, 3), np.uint8)] * 2
    assert [clip["start_s"] for clip in clips] == [0.0, 0.8]
    assert [clip["frame_rate"] for clip in clips] == [10.0, 10.0]


def test_a_stride_takes_every_second_frame(video):
    clips = list(DecodeClips(frames=4, stride=2)(video))
    assert [numbers(clip) for clip in clips] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert clips[1]["frame_rate"] == 5.0


def test_the_last_frame_is_repeated_if_asked_for(video):
    *_, last = DecodeClips(frames=8, last="repeat")(video)
    assert numbers(last) == [16, 17, 18, 19, 19, 19, 19, 19]


def test_frames_are_scaled_and_clips_limited(video):
    [clip] = DecodeClips(frames=2, size=[24, 32], max_clips=1)(video)
    assert clip["frames"].shape == (2, 24, 32, 3)
    assert numbers(clip) == [0, 1]


def test_a_clip_that_is_kept_does_not_change_later(video):
    first, second = DecodeClips(frames=8)(video)
    assert not np.shares_memory(first["frames"], second["frames"])


def turn(video, a, b, c, d):
    """Set the display matrix in the header of the track (`tkhd`, ISO/IEC 14496-12)."""
    start = video.index(b"tkhd") + 44
    matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    return video[:start] + matrix + video[start + len(matrix) :]


@pytest.fixture(scope="module")
def marked_video():
    """Two frames of 64 x 48 pixels, white in the left upper corner."""
    file = io.BytesIO()
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24, :16] = 255
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


ONE = 1 << 16
MATRICES = {
    "as it is": ((ONE, 0, 0, ONE), lambda pixels: pixels),
    "90 clockwise": ((0, ONE, -ONE, 0), lambda pixels: np.rot90(pixels, -1)),
    "180": ((-ONE, 0, 0, -ONE), lambda pixels: np.rot90(pixels, 2)),
    "270 clockwise": ((0, -ONE, ONE, 0), np.rot90),
    "mirrored": ((-ONE, 0, 0, ONE), np.fliplr),
    "upside down": ((ONE, 0, 0, -ONE), np.flipud),
    "90 and mirrored": ((0, ONE, ONE, 0), lambda pixels: pixels.swapaxes(0, 1)),
    "270 and mirrored": ((0, -ONE, -ONE, 0), lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1)),
}


@pytest.mark.parametrize("matrix, make_upright", MATRICES.values(), ids=MATRICES)
def test_frames_are_upright(marked_video, matrix, make_upright):
    [as_stored] = DecodeClips(frames=2)(marked_video)
    [clip] = DecodeClips(frames=2)(turn(marked_video, *matrix))
    np.testing.assert_array_equal(clip["frames"], [make_upright(frame) for frame in as_stored["frames"]])


def test_the_size_is_that_of_the_upright_frames(marked_video):
    [clip] = DecodeClips(frames=2, size=[64, 24])(turn(marked_video, 0, ONE, -ONE, 0))
    assert clip["frames"].shape == (2, 64, 24, 3)
    assert clip["frames"][0, 4, 20].min() > 200  # the white corner is on the right


def test_a_turn_by_another_angle_is_refused(marked_video):
    slanted = turn(marked_video, *(round(ONE * number) for number in (0.8, 0.6, -0.6, 0.8)))
    with pytest.raises(ValueError, match="rotates the frames by 36 degrees; decode only files that are rotated by 90"):
        list(DecodeClips(frames=2)(slanted))


def test_a_path_works(video, tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(video)
    assert len(list(DecodeClips(frames=10)(str(path)))) == 2
    with pytest.raises(FileNotFoundError, match=r"video.DecodeClips: no file nothing\.mp4"):
        list(DecodeClips()("nothing.mp4"))


def test_bytes_that_are_no_video_are_refused(video):
    with pytest.raises(ValueError, match=r"video.DecodeClips: PyAV cannot decode 5 bytes that begin with b'hello'"):
        list(DecodeClips()(b"hello"))


def test_a_file_without_video_is_refused():
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(ValueError, match="holds no video"):
        list(DecodeClips()(file.getvalue()))


def test_a_wrong_argument_and_a_missing_package_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="stride is 0; give a whole number of at least 1"):
        DecodeClips(stride=0)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(TargetError, match=r"requires the package av; run `pip install 'av>="):
        DecodeClips()
