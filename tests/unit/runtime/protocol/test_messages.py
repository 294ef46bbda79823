"""A message arrives as it was sent, a seek fits its page, and the socket is closed however its making ends."""

import contextlib
from typing import Any

import msgspec
import pytest
import zmq

from stagepipe.core import Cursor, ImposedSkip
from stagepipe.runtime.protocol import (
    ControlSocket,
    ForcedSkip,
    Seek,
    StaleLeasesEvent,
    Stop,
    UnbatchedRange,
    decode_command,
    decode_event,
    encode_message,
)
from stagepipe.timing import Board, BoardLayout, make_board_fd
from stagepipe.transport import LeaseExtent

ROOT = Cursor(None, 70_000, emitted_keys=frozenset({(70_002,), (70_005, 3)}), replay_groups=(((70_001,), (70_004,)),))
CURSOR = Cursor(Cursor(ROOT, 1200, (1200, 3), 2), 40, (40, 1), skips=frozenset({ImposedSkip("decode", (40, 0))}))


def sample_seek(forced_skip_count: int = 2) -> Seek:
    return Seek(
        generation=7,
        epoch=3,
        cursor=CURSOR,
        windows=[32, 16, 8],
        small_item_windows=[256, 128, 64],
        era=2,
        forced_skips=[ForcedSkip("decode", (item, 1), "it killed 3 workers", 3) for item in range(forced_skip_count)],
        unbatched_ranges=[UnbatchedRange("embed", 64, 95)],
        rebuild_stateful=True,
    )


def test_a_seek_arrives_typed():
    seek = decode_command(encode_message(sample_seek()))
    assert seek == sample_seek()
    assert isinstance(seek, Seek)
    assert [seek.segment_cursor(segment) for segment in range(3)] == [ROOT, CURSOR.upstream, CURSOR]
    assert decode_command(encode_message(Stop())) == Stop()


def test_a_field_of_the_wrong_type_is_refused():
    data = encode_message(sample_seek()).replace(b"\xa5embed", b"\xc4\x05embed")  # bytes instead of a string
    with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got `bytes` - at `\$\[8\]\[0\]\[0\]`"):
        decode_command(data)


@pytest.mark.parametrize("forced_skip_count, fits", [(20, True), (60, False)])
def test_a_seek_with_some_skips_fits_the_board(forced_skip_count, fits):
    layout = BoardLayout(segment_count=3, stages_per_process=(1,))
    board = Board(make_board_fd(layout), layout)
    assert board.publish_seek(7, encode_message(sample_seek(forced_skip_count))) is fits
    if fits:
        assert decode_command(board.read_seek(7) or b"") == sample_seek(forced_skip_count)


def test_an_event_arrives_typed():
    event = StaleLeasesEvent(process=1, era=2, leases=[LeaseExtent(3, 4096, 512)])
    received = decode_event(encode_message(event))
    assert received == event
    assert isinstance(received, StaleLeasesEvent)
    assert received.leases[0].nbytes == 512


@pytest.mark.timeout(30)
def test_an_interrupt_right_after_the_socket_was_made_does_not_hang(monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    make_socket = zmq.Context.socket

    def make_and_interrupt(context: zmq.Context[Any], kind: int) -> None:
        made.append(make_socket(context, kind))
        raise KeyboardInterrupt

    monkeypatch.setattr(zmq.Context, "socket", make_and_interrupt)
    with pytest.raises(KeyboardInterrupt), contextlib.ExitStack() as exit_stack:
        ControlSocket(exit_stack)
    assert made[0].closed
