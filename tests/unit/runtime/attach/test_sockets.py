import os
import resource
import socket

import pytest

from stagepipe.runtime.attach.sockets import receive_with_fds, send_with_fds


@pytest.fixture
def ends():
    client, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(5)
    server.settimeout(5)
    with client, server:
        yield client, server


@pytest.mark.parametrize("count", [0, 1, 252, 253, 600])
def test_a_message_of_any_size_arrives_with_its_descriptors_in_order(ends, count):
    client, server = ends
    pairs = [os.pipe() for _ in range(count)]
    message = os.urandom(1_000_000)
    send_with_fds(client, message, [write_fd for _, write_fd in pairs])
    received, fds = receive_with_fds(server)
    assert received == message
    assert len(fds) == count
    for number, fd in enumerate(fds):
        os.write(fd, number.to_bytes(4))
    assert [int.from_bytes(os.read(read_fd, 4)) for read_fd, _ in pairs] == list(range(count))
    for fd in (*fds, *(end for pair in pairs for end in pair)):
        os.close(fd)


def test_a_closed_connection_is_none(ends):
    client, server = ends
    client.close()
    assert receive_with_fds(server) is None


def test_more_descriptors_than_the_limit_allows_are_refused_and_closed(ends):
    client, server = ends
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
    send_with_fds(client, b"", files)
    for fd in files:
        os.close(fd)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 10, old[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            receive_with_fds(server)
        assert os.dup(0) == free
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
        os.close(free)
