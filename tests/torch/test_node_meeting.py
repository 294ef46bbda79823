"""How the ranks of a machine know who they are, find each other, and wait for each other. Without a pipeline."""

import os
import socket
import threading
from time import monotonic

import pytest

from stagepipe import RunError, UsageError
from stagepipe.torch import Loader
from stagepipe.torch.node import World
from stagepipe.torch.node.line import Ear, Line
from stagepipe.torch.node.messages import Ask, Closing, Failed, Handed
from stagepipe.torch.node.rendezvous import accept, connect, folder_of, listening
from stagepipe.torch.node.table import ClosedError, Table

pytestmark = pytest.mark.timeout(30)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "train",
}


# ---------------------------------------------------------------------- who is who


def test_torchruns_environment_says_which_rank_this_is():
    world = World.of(environ=TORCHRUN)
    assert (world.rank, world.machine, world.machines, world.first_rank) == (5, 1, 2, 4)
    assert world.run == World.of(environ={**TORCHRUN, "RANK": "4", "LOCAL_RANK": "0"}).run
    assert world.run != World.of(environ={**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).run


def test_arguments_stand_for_what_no_launcher_has_set():
    world = World.of(local_rank=1, local_world_size=2, environ={})
    assert (world.rank, world.world_size, world.machines) == (1, 2, 1)
    assert World.of(6, 8, 0, 2, environ={}).machine == 3
    assert world.run == World.of(local_rank=0, local_world_size=2, environ={}).run, "of the same parent"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"LOCAL_RANK": None}, "LOCAL_RANK is not set; start the script with torchrun"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many', which is no whole number"),
        ({"WORLD_SIZE": "9"}, "the same number of ranks on each machine"),
        ({"RANK": "6"}, "as torchrun gives them out"),
        ({"LOCAL_RANK": "4"}, "ranks count from 0"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(change, message):
    environ = {key: value for key, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(UsageError, match=message):
        World.of(environ=environ)


@pytest.mark.parametrize(
    "keywords, message",
    [({"share": "machine"}, "give 'node'"), ({"share": "node", "inline": True, "local_rank": 0}, "not inline=True")],
)
def test_what_cannot_be_shared(keywords, message):
    with pytest.raises(UsageError, match=message):
        Loader({"source": {"uses": range(3)}}, local_world_size=1, **keywords)


def test_a_rank_that_is_alone_on_its_machine_needs_nobody():
    with Loader({"source": {"uses": range(5)}}, share="node", local_rank=0, local_world_size=1) as loader:
        assert list(loader) == [0, 1, 2, 3, 4]
        items = iter(loader)
        next(items)
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(UsageError, match="a state was loaded"):
            next(items)
        assert list(loader) == [1, 2, 3, 4]
        assert loader.epoch == 2
        iter(loader)
        assert next(iter(loader)) == 0
        assert loader.epoch == 2, "one that nobody has asked for an item was no epoch"
    with pytest.raises(UsageError, match="closed"):
        iter(loader)
    assert loader.report().run.status == "finished"


# ---------------------------------------------------------------------- finding each other


def test_two_find_each_other_and_leave_nothing_behind(tmp_path):
    folder = tmp_path / "meeting"
    lines = []
    with listening(folder) as server:
        other = threading.Thread(target=lambda: lines.append(connect(folder, monotonic() + 10)))
        other.start()
        ours = accept(server, monotonic() + 10)
        other.join()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    theirs = lines[0]
    assert ours.pid == theirs.pid == os.getpid()
    read_fd, write_fd = os.pipe()
    assert ours.hand([read_fd] * 201)
    first, second = theirs.receive(5), theirs.receive(5)
    assert (first[0], second[0]) == (Handed(1), Handed(0))
    assert [len(first[1]), len(second[1])] == [200, 1]
    assert not os.get_inheritable(second[1][0])
    for fd in (read_fd, write_fd, *first[1], *second[1]):
        os.close(fd)
    ours.close()
    assert theirs.receive(5) == (None, [])
    theirs.close()


def test_a_socket_left_by_a_killed_run_is_taken_over(tmp_path):
    folder = tmp_path / "meeting"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as old:
        old.bind(str(folder / "ranks"))
    assert connect(folder, monotonic() + 0.1) is None
    with listening(folder):
        line = connect(folder, monotonic() + 10)
        assert line is not None
        line.close()


@pytest.mark.parametrize("wrong", ["open to others", "a link"])
def test_a_folder_that_somebody_else_may_have_made_is_not_used(tmp_path, wrong):
    folder = tmp_path / "meeting"
    if wrong == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o755)
    with pytest.raises(RunError, match="must be a folder of yours with mode 0700"), listening(folder):
        pass
    with pytest.raises(RunError, match="must be a folder of yours with mode 0700"):
        connect(folder, monotonic() + 10)


def test_loaders_and_users_and_runs_have_folders_of_their_own():
    assert folder_of(("a", "0")) == folder_of(("a", "0"))
    assert len({folder_of(names) for names in (("a", "0"), ("a", "1"), ("b", "0"), ("a0",))}) == 4


def test_a_path_that_is_too_long_for_a_socket_is_told_with_the_mend(tmp_path):
    with pytest.raises(RunError, match="set TMPDIR to a folder with a short path"), listening(tmp_path / ("x" * 120)):
        pass
    assert not list(tmp_path.iterdir())


def pair() -> tuple[Line, Line]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Line(ours), Line(theirs)


def test_the_ear_hears_all_that_was_said_and_then_the_end():
    ours, theirs = pair()
    heard, ended = [], threading.Event()

    def hear(line, message):
        heard.append(message)
        if message is None:
            ended.set()

    ear = Ear([ours], hear)
    said = [Ask(1, 0, 0, None), Failed(1, "x" * 30_000), Closing()]
    for message in said:
        assert theirs.send(message)
    theirs.close()
    assert ended.wait(10)
    assert heard == [*said, None]
    ear.close()
    assert not ours.send(Closing()), "nobody is there"
    ours.close()


# ---------------------------------------------------------------------- waiting for each other


def ask(epoch: int, number: int = 1) -> Ask:
    return Ask(number, epoch, 0, None)


def table(wait_s: float = 10) -> Table:
    return Table(["rank 0", "rank 1 (pid 7)", "rank 2 (pid 8)"], wait_s)


def test_an_epoch_begins_when_all_have_asked_and_who_is_ahead_waits():
    waiting = table()
    for rank, epoch in enumerate((3, 4, 3)):
        waiting.ask(rank, ask(epoch))
    assert sorted(waiting.gather(lambda: 0.01)) == [0, 2]
    assert [waiting.wants(rank) for rank in range(3)] == [True, False, True]
    waiting.ask(0, ask(4, 2))
    waiting.ask(2, ask(4, 2))
    assert sorted(waiting.gather(lambda: 0.01)) == [0, 1, 2]


def test_who_does_not_come_is_named():
    waiting = table(wait_s=0.05)
    waiting.ask(0, ask(2))
    with pytest.raises(RunError, match=r"rank 1 \(pid 7\), rank 2 \(pid 8\): epoch 2 was not begun there for 0 s"):
        waiting.gather(lambda: 0.01)


def test_who_has_closed_is_named_to_who_goes_on():
    waiting = table()
    waiting.leave(1)
    assert not waiting.wants(1)
    waiting.ask(0, ask(2))
    with pytest.raises(ClosedError, match=r"rank 1 \(pid 7\): the loader is closed there, and rank 0 begins epoch 2"):
        waiting.gather(lambda: 0.01)
    assert waiting.give_up(0) == ask(2)


def test_the_first_failure_is_the_one_that_is_told():
    waiting = table()
    first = RunError("first")
    assert waiting.fail(first)
    assert not waiting.fail(RunError("second"))
    assert waiting.failure is first
    assert waiting.gather(lambda: 0.01) is None
    assert not waiting.wants(0)
