"""The ranks of a machine: their topology, how they connect, and how they wait for each other. Without a pipeline."""

import os
import socket
import threading
from time import monotonic

import pytest

from stagepipe import RunError, UsageError
from stagepipe.torch import Loader
from stagepipe.torch.leader import EpochRequests, RankClosedError
from stagepipe.torch.rank_connection import (
    ConnectionListener,
    DescriptorBatch,
    EpochRequest,
    IterationFailed,
    LoaderClosed,
    RankConnection,
    accept_rank,
    connect_to_leader,
    derive_rendezvous_folder,
    listening_socket,
)
from stagepipe.torch.ranks import RankTopology

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


# ---------------------------------------------------------------------- topology


def test_the_topology_comes_from_the_environment_of_torchrun():
    topology = RankTopology.from_environment(environ=TORCHRUN)
    assert (topology.rank, topology.node_rank, topology.node_count, topology.leader_rank) == (5, 1, 2, 4)
    assert (
        topology.run_identity
        == RankTopology.from_environment(environ={**TORCHRUN, "RANK": "4", "LOCAL_RANK": "0"}).run_identity
    )
    assert (
        topology.run_identity
        != RankTopology.from_environment(environ={**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).run_identity
    )


def test_arguments_replace_the_variables_of_a_launcher():
    topology = RankTopology.from_environment(local_rank=1, local_world_size=2, environ={})
    assert (topology.rank, topology.world_size, topology.node_count) == (1, 2, 1)
    assert RankTopology.from_environment(6, 8, 0, 2, environ={}).node_rank == 3
    assert (
        topology.run_identity
        == RankTopology.from_environment(local_rank=0, local_world_size=2, environ={}).run_identity
    ), "they have the same parent"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"LOCAL_RANK": None}, "LOCAL_RANK is not set; start the script with torchrun"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not a whole number"),
        ({"WORLD_SIZE": "9"}, "the same number of ranks on each machine"),
        ({"RANK": "6"}, "as torchrun assigns them"),
        ({"LOCAL_RANK": "4"}, "ranks count from 0"),
    ],
)
def test_inconsistent_numbers_are_refused(change, message):
    environ = {key: value for key, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(UsageError, match=message):
        RankTopology.from_environment(environ=environ)


@pytest.mark.parametrize(
    "keywords, message",
    [({"share": "machine"}, "give 'node'"), ({"share": "node", "inline": True, "local_rank": 0}, "not inline=True")],
)
def test_a_pipeline_that_cannot_be_shared_is_refused(keywords, message):
    with pytest.raises(UsageError, match=message):
        Loader({"source": {"uses": range(3)}}, local_world_size=1, **keywords)


def test_a_single_rank_needs_no_other_rank():
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
        assert loader.epoch == 2, "an iterator that was never read is not an epoch"
    with pytest.raises(UsageError, match="closed"):
        iter(loader)
    assert loader.report().run.status == "finished"


# ---------------------------------------------------------------------- connecting


def test_two_ranks_connect_and_leave_nothing_behind(tmp_path):
    folder = tmp_path / "meeting"
    connections = []
    with listening_socket(folder) as server:
        other = threading.Thread(target=lambda: connections.append(connect_to_leader(folder, monotonic() + 10)))
        other.start()
        ours = accept_rank(server, monotonic() + 10)
        other.join()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    theirs = connections[0]
    assert ours.pid == theirs.pid == os.getpid()
    read_fd, write_fd = os.pipe()
    assert ours.send_descriptors([read_fd] * 201)
    first, second = theirs.receive(5), theirs.receive(5)
    assert (first[0], second[0]) == (DescriptorBatch(1), DescriptorBatch(0))
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
    assert connect_to_leader(folder, monotonic() + 0.1) is None
    with listening_socket(folder):
        connection = connect_to_leader(folder, monotonic() + 10)
        assert connection is not None
        connection.close()


@pytest.mark.parametrize("wrong", ["open to others", "a link"])
def test_a_folder_that_another_user_may_have_created_is_refused(tmp_path, wrong):
    folder = tmp_path / "meeting"
    if wrong == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o755)
    with pytest.raises(RunError, match="must be your own folder with mode 0700"), listening_socket(folder):
        pass
    with pytest.raises(RunError, match="must be your own folder with mode 0700"):
        connect_to_leader(folder, monotonic() + 10)


def test_each_run_machine_and_loader_has_its_own_folder():
    assert derive_rendezvous_folder(("a", "0")) == derive_rendezvous_folder(("a", "0"))
    assert len({derive_rendezvous_folder(names) for names in (("a", "0"), ("a", "1"), ("b", "0"), ("a0",))}) == 4


def test_a_path_that_is_too_long_for_a_socket_is_reported_with_a_hint(tmp_path):
    with (
        pytest.raises(RunError, match="set TMPDIR to a folder with a short path"),
        listening_socket(tmp_path / ("x" * 120)),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name, reason", [("missing/a", "not a folder that you can write to"), ("x" * 100, "107 bytes")]
)
def test_a_follower_does_not_wait_for_a_leader_that_cannot_listen(name, reason, tmp_path):
    folder = tmp_path / name
    with pytest.raises(RunError, match="set TMPDIR"), listening_socket(folder):
        pass
    with pytest.raises(RunError, match=f"{reason}; set TMPDIR to a folder with a short path"):
        connect_to_leader(folder, monotonic() + 20)


def pair() -> tuple[RankConnection, RankConnection]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return RankConnection(ours), RankConnection(theirs)


def test_the_listener_passes_on_every_message_and_then_the_end():
    ours, theirs = pair()
    received, ended = [], threading.Event()

    def on_message(connection, message):
        received.append(message)
        if message is None:
            ended.set()

    listener = ConnectionListener([ours], on_message)
    sent = [EpochRequest(1, 0, 0, None), IterationFailed(iteration=1, message="x" * 30_000), LoaderClosed()]
    for message in sent:
        assert theirs.send(message)
    theirs.close()
    assert ended.wait(10)
    assert received == [*sent, None]
    listener.close()
    assert not ours.send(LoaderClosed()), "the peer is gone"
    ours.close()


# ---------------------------------------------------------------------- waiting for each other


def make_request(epoch: int, iteration: int = 1) -> EpochRequest:
    return EpochRequest(iteration, epoch, 0, None)


def make_requests(timeout_s: float = 10) -> EpochRequests:
    return EpochRequests(["rank 0", "rank 1 (pid 7)", "rank 2 (pid 8)"], timeout_s)


def test_an_epoch_starts_when_all_ranks_request_it_and_a_rank_that_is_ahead_waits():
    requests = make_requests()
    for rank, epoch in enumerate((3, 4, 3)):
        requests.add(rank, make_request(epoch))
    assert sorted(requests.wait_for_all(lambda: 0.01)) == [0, 2]
    assert [requests.wants_items(rank) for rank in range(3)] == [True, False, True]
    requests.add(0, make_request(4, 2))
    requests.add(2, make_request(4, 2))
    assert sorted(requests.wait_for_all(lambda: 0.01)) == [0, 1, 2]


def test_a_missing_rank_is_named():
    requests = make_requests(timeout_s=0.05)
    requests.add(0, make_request(2))
    with pytest.raises(
        RunError,
        match=r"rank 1 \(pid 7\), rank 2 \(pid 8\): epoch 2 was not started within 0 s, and rank 0 waited for it",
    ):
        requests.wait_for_all(lambda: 0.01)


def test_a_rank_that_has_closed_is_named_to_a_rank_that_continues():
    requests = make_requests()
    requests.close_rank(1)
    assert not requests.wants_items(1)
    requests.add(0, make_request(2))
    with pytest.raises(RankClosedError, match=r"rank 1 \(pid 7\): the loader is closed, and rank 0 starts epoch 2"):
        requests.wait_for_all(lambda: 0.01)
    assert requests.withdraw(0) == make_request(2)


def test_the_first_failure_is_kept():
    requests = make_requests()
    first = RunError("first")
    assert requests.fail(first)
    assert not requests.fail(RunError("second"))
    assert requests.failure is first
    assert requests.wait_for_all(lambda: 0.01) is None
    assert not requests.wants_items(0)
