"""Who attaches gets the board for reading only, if it is the same user; a new layout takes a new number."""

import fcntl
import hashlib
import logging
import mmap
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stagepipe.runtime.attach import (
    AttachListener,
    ProcessDescription,
    RunDescription,
    find_runs,
    open_listener,
    read_peer_credentials,
    receive_with_fds,
    run,
)
from stagepipe.runtime.attach.sockets import make_client_socket
from stagepipe.timing import (
    LAYOUT_VERSION,
    RECEIVE_PHASES,
    SEND_PHASES,
    BoardLayout,
    DeliveryCounter,
    ProcessCounter,
    ProcessState,
    StageCounter,
    make_board_fd,
)
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(60)
LAYOUT = BoardLayout(1, (1, 0), 1)
DESCRIPTION = RunDescription(
    name="thumbnails",
    processes=(ProcessDescription(stages=("source",), rows=("source",), workers=1),),
    memory_bytes=1 << 20,
    layout=LAYOUT,
)
NOBODY = 65534
CONNECT_AS_NOBODY = f"""
import os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    client.connect(sys.argv[1])
    print("received", socket.recv_fds(client, 100, 10)[:2])
except OSError as error:
    print(type(error).__name__)
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def board_fd() -> Iterator[int]:
    fd = make_board_fd(LAYOUT)
    yield fd
    os.close(fd)


@pytest.fixture
def listener(socket_folder: Path, board_fd: int) -> Iterator[AttachListener]:
    listener = AttachListener(socket_folder, DESCRIPTION, board_fd)
    yield listener
    listener.close()


@contextmanager
def served(listener: AttachListener) -> Iterator[None]:
    """Answer who connects, as the supervisor's thread does."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.01):
            listener.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def socket_path(folder: Path) -> Path:
    [path] = folder.iterdir()
    return path


def test_the_same_user_gets_the_board_and_the_description(listener, board_fd):
    os.pwrite(board_fd, b"\x07", 8 * LAYOUT.process_offset(0))
    with served(listener):
        found = find_runs()
    assert found.problems == []
    [run] = found.runs
    assert (run.pid, run.run_id, run.description) == (os.getpid(), socket_path(listener._folder).name, DESCRIPTION)
    assert run.board.region(0)[ProcessCounter.STARTED_NS] == 7
    with pytest.raises((TypeError, ValueError)):
        run.board.generation = 1


def test_the_board_cannot_be_mapped_for_writing(listener):
    with make_client_socket() as connection:
        connection.connect(str(socket_path(listener._folder)))
        assert read_peer_credentials(connection) == (os.getpid(), os.geteuid())
        listener.serve()
        answer = receive_with_fds(connection)
    assert answer is not None
    [fd] = answer[1]
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 8, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fd, b"\x01", 0)
    os.close(fd)


@as_root
def test_another_user_is_refused_by_the_folder_and_by_the_listener(board_fd):
    folder = Path(f"/tmp/stagepipe-test-{os.getpid()}")
    listener = AttachListener(folder, DESCRIPTION, board_fd)
    command = [sys.executable, "-c", CONNECT_AS_NOBODY, str(socket_path(folder))]
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with served(listener):
            refused = subprocess.run(command, check=True, capture_output=True, text=True)
            assert refused.stdout == "PermissionError\n"
            folder.chmod(0o755)
            socket_path(folder).chmod(0o777)
            let_in = subprocess.run(command, check=True, capture_output=True, text=True)
            assert let_in.stdout == "received (b'', [])\n"
    finally:
        listener.close()
    assert not folder.exists()


@pytest.mark.parametrize("flaw", ["mode", pytest.param("owner", marks=as_root), "link"])
def test_a_folder_that_may_be_somebody_elses_is_refused_at_both_ends(socket_folder, board_fd, caplog, flaw):
    socket_folder.mkdir(mode=0o700)
    if flaw == "mode":
        socket_folder.chmod(0o750)
    elif flaw == "owner":
        os.chown(socket_folder, NOBODY, NOBODY)
    else:
        socket_folder.rename(socket_folder.with_name("elsewhere"))
        socket_folder.symlink_to("elsewhere")
    with caplog.at_level(logging.INFO, "stagepipe"):
        assert open_listener(DESCRIPTION, board_fd) is None
    assert "`stagepipe top` cannot attach to this run" in caplog.text
    [problem] = find_runs().problems
    if flaw != "link":
        owner = NOBODY if flaw == "owner" else os.geteuid()
        assert f"belongs to user {owner} with mode drwx" in problem
        assert "remove it, or set XDG_RUNTIME_DIR" in problem
        assert problem in caplog.text
    assert list(socket_folder.iterdir()) == []


def test_the_runtime_folder_of_another_user_is_not_used(socket_folder, tmp_path, monkeypatch, board_fd):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    listener = open_listener(DESCRIPTION, board_fd)
    assert listener is not None
    assert listener._folder == tmp_path / "mine" / "stagepipe"
    listener.close()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/1/no-folder")
    listener = open_listener(DESCRIPTION, board_fd)
    assert listener is not None
    assert listener._folder == socket_folder
    listener.close()


def test_a_long_path_is_no_limit(tmp_path, board_fd):
    folder = tmp_path / ("long" * 40)
    listener = AttachListener(folder, DESCRIPTION, board_fd)
    assert socket_path(folder).is_socket()
    listener.close()
    assert not folder.exists()


def test_the_folder_stays_until_its_last_run_ends(listener, board_fd):
    other = AttachListener(listener._folder, DESCRIPTION, board_fd)
    with served(listener), served(other):
        assert len({run.run_id for run in find_runs().runs}) == 2
    other.close()
    other.close()
    assert socket_path(listener._folder).name == listener._name
    listener.close()
    assert not listener._folder.exists()


def test_a_board_of_another_version_is_refused(listener, board_fd, monkeypatch):
    monkeypatch.setattr(run, "LAYOUT_VERSION", LAYOUT_VERSION + 1)
    with served(listener):
        found = find_runs()
    assert found.runs == []
    [problem] = found.problems
    assert (
        f"whose board has layout version {LAYOUT_VERSION}, and this one reads version {LAYOUT_VERSION + 1}" in problem
    )
    assert "use the `stagepipe` from the environment of that run" in problem


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x80"])
def test_a_description_that_cannot_be_read_is_refused(listener, message):
    listener._message = message
    with served(listener):
        found = find_runs()
    assert found.runs == []
    assert "sent no description of a run that this stagepipe can read" in found.problems[0]


def test_a_board_smaller_than_its_layout_is_refused(listener, board_fd):
    os.ftruncate(board_fd, 4096)  # reading beyond its end would kill the process with SIGBUS
    with served(listener):
        found = find_runs()
    assert found.runs == []
    assert "sent no description of a run" in found.problems[0]


def test_a_run_that_is_stopped_is_reported(listener, monkeypatch):
    monkeypatch.setattr(run, "_ANSWER_TIMEOUT_S", 0.1)
    found = find_runs()
    assert found.runs == []
    assert f"process {os.getpid()} does not answer" in found.problems[0]


def leave_socket(folder: Path) -> None:
    """Let a process listen in `folder` and be killed."""
    code = f"""
import os, signal
from pathlib import Path
from tests.unit.runtime.attach.test_run import DESCRIPTION, LAYOUT, AttachListener, make_board_fd
AttachListener(Path({str(folder)!r}), DESCRIPTION, make_board_fd(LAYOUT))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL


def test_the_socket_of_a_killed_run_is_removed(socket_folder, board_fd):
    leave_socket(socket_folder)
    assert socket_path(socket_folder).is_socket()
    assert find_runs().runs == []
    assert not socket_folder.exists()
    leave_socket(socket_folder)
    left = socket_path(socket_folder)
    listener = AttachListener(socket_folder, DESCRIPTION, board_fd)
    assert not left.exists()
    assert socket_path(socket_folder).name == listener._name
    listener.close()


def test_a_socket_that_does_not_listen_yet_is_not_deleted(listener):
    hidden = listener._folder / f".{os.getpid()}-99"
    with make_client_socket() as starting:
        starting.bind(str(hidden))
        with served(listener):
            assert len(find_runs().runs) == 1
        assert hidden.exists()
    hidden.unlink()


def test_a_forked_child_does_not_listen(listener):
    pid = os.fork()
    if not pid:
        os._exit(0 if listener.fd == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert socket_path(listener._folder).is_socket()
    with served(listener):
        assert len(find_runs().runs) == 1


def test_without_descriptors_it_stops_listening_instead_of_spinning(listener, monkeypatch):
    with make_client_socket() as connection:
        connection.connect(str(socket_path(listener._folder)))

        def fail() -> None:
            raise OSError(24, "Too many open files")

        class Exhausted:
            accept = staticmethod(fail)
            close = staticmethod(listener._socket.close)
            fileno = staticmethod(listener._socket.fileno)

        monkeypatch.setattr(listener, "_socket", Exhausted())
        assert not listener.serve()
    assert not listener._folder.exists()


DIGESTS = {
    1: "01854c0a9820ca2c",
    2: "35490dd34baacb5f",
    3: "7231524a1c315ad9",
    4: "7231524a1c315ad9",
    5: "beb51966284a3101",
    6: "ddb3393588f0350a",
}
"""What each version stood for. Add a line; never change one that was released."""


def compute_layout_digest() -> str:
    enums = [list(each.__members__.items()) for each in (ProcessCounter, ProcessState, StageCounter, DeliveryCounter)]
    layouts = [BoardLayout(segments, (1,) * processes, 2) for segments in (1, 2) for processes in (1, 2)]
    offsets = [(layout.word_count, layout.rule_offset(0), layout.process_offset(1)) for layout in layouts]
    described = (RunDescription.__struct_fields__, ProcessDescription.__struct_fields__)
    facts = ([[(name, int(value)) for name, value in each] for each in enums], SEND_PHASES, RECEIVE_PHASES, offsets)
    return hashlib.sha256(repr((facts, described)).encode()).hexdigest()[:16]


def test_each_layout_change_has_its_own_version():
    digest = compute_layout_digest()
    assert DIGESTS.get(LAYOUT_VERSION) == digest, (
        f"the layout has changed: raise LAYOUT_VERSION in stagepipe/timing/board.py to {LAYOUT_VERSION + 1}, "
        f"and add {LAYOUT_VERSION + 1}: {digest!r} here"
    )
