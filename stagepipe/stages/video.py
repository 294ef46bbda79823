"""Stages for video: `DecodeClips`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from stagepipe.core import empty
from stagepipe.stages.file_ends import check_whole
from stagepipe.stages.optional_packages import (
    check_choice,
    check_positive,
    describe_value,
    open_input,
    parse_size,
    require,
)

_QUARTER_TOLERANCE: Final = 100
"""A matrix is a quarter turn if its other numbers are smaller than the turning ones by this factor."""


class DecodeClips:
    """Decode a video file with PyAV and yield consecutive clips of a fixed number of frames.

    The input is a path or the bytes of a file. It yields `{"frames": array, "start_s": seconds, "frame_rate": hertz}`
    for each clip. The frames are uint8 RGB of shape (frames, height, width, 3), rotated and mirrored according to the
    file's display matrix. With `field`, each clip goes into a copy of the item. Only one clip is in memory at a time.

    Args:
        frames: frames in a clip.
        stride: take every `stride`-th frame of the file.
        size: scale the rotated frames to these pixels: one number for a square, or [height, width]. None: keep the
            size.
        max_clips: stop after this number of clips.
        last: `drop` the remaining frames that do not fill a clip, or `repeat` the last frame.
        truncated: `refuse` a file that is shorter than its header says, or `keep` its content. Formats without a length
            are not checked, such as MPEG-TS, and WebM written to a pipe.

    >>> list(DecodeClips(frames=8, size=64)("video.mp4"))  # doctest: +SKIP

    Raises TargetError if PyAV is not installed, ValueError for bytes that it cannot decode, without a video or
    truncated, and FileNotFoundError.
    """

    def __init__(
        self,
        *,
        frames: int = 16,
        stride: int = 1,
        size: int | Sequence[int] | None = None,
        max_clips: int | None = None,
        last: Literal["drop", "repeat"] = "drop",
        truncated: Literal["refuse", "keep"] = "refuse",
    ) -> None:
        check_choice(truncated, ("refuse", "keep"), "truncated", "video.DecodeClips")
        check_choice(last, ("drop", "repeat"), "last", "video.DecodeClips")
        self.frames: Final = check_positive(frames, "frames", "video.DecodeClips")
        self.stride: Final = check_positive(stride, "stride", "video.DecodeClips")
        self.size: Final = None if size is None else parse_size(size, "video.DecodeClips")
        self.max_clips: Final = None if max_clips is None else check_positive(max_clips, "max_clips", "DecodeClips")
        self.last: Final = last
        self.truncated: Final = truncated
        require("av", "video.DecodeClips", extra="video")

    def __call__(self, data: Any) -> Iterator[dict[str, Any]]:
        """Yield the clips."""
        import av

        source = open_input(data, "video.DecodeClips")
        try:
            with av.open(source) as container:
                if not container.streams.video:
                    raise ValueError(f"video.DecodeClips: {describe_value(data)} holds no video")
                if self.truncated == "refuse":
                    check_whole(open_input(data, "video.DecodeClips"), "video.DecodeClips", describe_value(data))
                yield from self._iter_clips(container)
        except av.FFmpegError as error:
            raise ValueError(f"video.DecodeClips: PyAV cannot decode {describe_value(data)}: {error}") from error

    def _iter_clips(self, container: Any) -> Iterator[dict[str, Any]]:
        stream = container.streams.video[0]
        clip = _Clip(self.frames, float(stream.average_rate or 0) / self.stride)
        count = 0
        for index, frame in enumerate(container.decode(stream)):
            if index % self.stride:
                continue
            clip.add(self._to_array(frame), float(frame.time or 0))
            if clip.is_full:
                yield clip.take()
                count += 1
                if count == self.max_clips:
                    return
        if clip.count and self.last == "repeat":
            clip.repeat_last()
            yield clip.take()

    def _to_array(self, frame: Any) -> np.ndarray:
        turn = _read_turn(frame)
        height, width = (None, None) if self.size is None else self.size
        if turn.swaps:
            height, width = width, height
        return turn.apply(frame.to_ndarray(format="rgb24", width=width, height=height))


class _Turn(NamedTuple):
    """Operations that make a decoded frame upright: swap its axes, then mirror it."""

    swaps: bool = False
    upside_down: bool = False
    mirrored: bool = False

    def apply(self, frame: np.ndarray) -> np.ndarray:
        upright = frame.swapaxes(0, 1) if self.swaps else frame
        return upright[:: -1 if self.upside_down else 1, :: -1 if self.mirrored else 1]


def _read_turn(frame: Any) -> _Turn:
    """Return the turn of a frame's display matrix. Raises ValueError unless it is a multiple of a quarter turn.

    A pixel (x, y) is shown at (a x + c y, b x + d y); libavutil/display.h defines the layout. PyAV's `frame.rotation`
    is only the angle, which does not show mirroring: a mirrored frame has the angle 180.
    """
    from av.sidedata.sidedata import Type

    side_data = frame.side_data.get(Type.DISPLAYMATRIX)
    if side_data is None:
        return _Turn()
    a, b, _, c, d = (int(number) for number in np.frombuffer(bytes(side_data), np.int32)[:5])
    swaps = abs(b) > abs(a)
    across, down = (c, b) if swaps else (a, d)
    if any(abs(other) * _QUARTER_TOLERANCE > abs(across) for other in ((a, d) if swaps else (b, c))):
        raise ValueError(
            f"video.DecodeClips: the display matrix rotates the frames by {-frame.rotation} degrees; decode only files "
            "that are rotated by 90, 180 or 270"
        )
    return _Turn(swaps, upside_down=down < 0, mirrored=across < 0)


class _Clip:
    """The frames of a clip, written into outgoing shared memory as they are decoded."""

    def __init__(self, size: int, frame_rate: float) -> None:
        self.count = 0
        self._size = size
        self._frame_rate = frame_rate
        self._start_s = 0.0
        self._frames: Any = None

    @property
    def is_full(self) -> bool:
        return self.count == self._size

    def add(self, frame: np.ndarray, time_s: float) -> None:
        if self.count == 0:
            self._frames = empty((self._size, *frame.shape), np.uint8)
            self._start_s = time_s
        if frame.shape != self._frames.shape[1:]:
            raise ValueError(
                f"video.DecodeClips: the frames change from {self._frames.shape[1:3]} to {frame.shape[:2]} pixels "
                f"(height, width) {time_s:.3f} s into the file; scale all to one `size`"
            )
        self._frames[self.count] = frame
        self.count += 1

    def repeat_last(self) -> None:
        self._frames[self.count :] = self._frames[self.count - 1]

    def take(self) -> dict[str, Any]:
        """Return the clip, and drop the reference to its array, which would force a copy."""
        frames = self._frames
        self._frames = None
        self.count = 0
        return {"frames": frames, "start_s": self._start_s, "frame_rate": self._frame_rate}
