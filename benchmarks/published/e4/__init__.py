"""E4: a client requests one array from another process and waits until it has arrived.

There are four shapes (float64). Each is timed including the creation of the array, as published, and with an array that
was created beforehand ("ready"). The number of the request is the seed of the array; a ready array is stamped with it.

arrays       the payload, its check, and the base of the contestants with a server
web          HTTP and WebSocket, with bytes and with a shared memory segment for each message
sockets      Listener and Client, a Unix socket, memfds, gRPC
messages     ZeroMQ and Arrow Flight
brokers      RabbitMQ and Redis
loans        iceoryx2
dataflow     dora
objects      Ray
pipelines    stagepipe
"""

from __future__ import annotations

from benchmarks.published.e4.arrays import SHAPES, SMALL, check, payloads, spoil
from benchmarks.published.model import Contestant, Experiment

_WEB = ("fastapi", "uvicorn", "uvloop", "httptools")
"""With what uvicorn's extra `standard` installs for speed."""
_HTTP, _SOCKET = "benchmarks.published.e4.web:Http", "benchmarks.published.e4.web:WebSocket"
_ICEORYX = "benchmarks.published.e4.loans:Iceoryx"
_ZMQ = "benchmarks.published.e4.messages:ZeroMq"

_PUBLISHED = (
    # a float takes an object of 24 bytes, a pointer of 8 and about 20 characters, on both sides
    Contestant("HTTP + JSON", _HTTP, {"encoding": "json"}, _WEB, memory_factor=22.0),
    Contestant("HTTP + base64", _HTTP, {"encoding": "base64"}, _WEB),
    Contestant("WebSocket + bytes", _SOCKET, {"encoding": "bytes"}, (*_WEB, "websockets")),
    Contestant("HTTP + shared memory", _HTTP, {"encoding": "segment"}, _WEB),
    Contestant("WebSocket + shared memory", _SOCKET, {"encoding": "segment"}, (*_WEB, "websockets")),
    Contestant("Listener/Client", "benchmarks.published.e4.sockets:ListenerClient"),
    Contestant("gRPC + bytes", "benchmarks.published.e4.sockets:Grpc", packages=("grpc",)),
    Contestant(
        "RabbitMQ + bytes",
        "benchmarks.published.e4.brokers:RabbitMq",
        packages=("pika",),
        programs=("rabbitmq-server", "epmd"),
        max_bytes=512 << 20,
        limit="exceeds RabbitMQ's largest message size, 512 MiB",
    ),
)
_ADDITIONS = (
    Contestant("ZeroMQ ipc", _ZMQ, {"transport": "ipc", "copy": True}, is_addition=True),
    Contestant("ZeroMQ ipc, no copy", _ZMQ, {"transport": "ipc", "copy": False}, is_addition=True),
    Contestant("ZeroMQ tcp", _ZMQ, {"transport": "tcp", "copy": True}, is_addition=True),
    Contestant("ZeroMQ tcp, no copy", _ZMQ, {"transport": "tcp", "copy": False}, is_addition=True),
    Contestant(
        "Redis lists",
        "benchmarks.published.e4.brokers:Redis",
        packages=("redis", "hiredis"),
        programs=("redis-server",),
        is_addition=True,
    ),
    Contestant("Unix socket", "benchmarks.published.e4.sockets:UnixSocket", is_addition=True),
    Contestant("memfd over SCM_RIGHTS", "benchmarks.published.e4.sockets:Memfd", is_addition=True),
    Contestant("memfd, reused", "benchmarks.published.e4.sockets:ReusedMemfd", is_addition=True),
    Contestant(
        "Arrow Flight", "benchmarks.published.e4.messages:Flight", packages=("pyarrow.flight",), is_addition=True
    ),
    Contestant("Ray object store", "benchmarks.published.e4.objects:Ray", packages=("ray",), is_addition=True),
    Contestant("iceoryx2", _ICEORYX, {"in_place": False}, packages=("iceoryx2",), is_addition=True),
    Contestant("iceoryx2, made in place", _ICEORYX, {"in_place": True}, packages=("iceoryx2",), is_addition=True),
    Contestant(
        "dora",
        "benchmarks.published.e4.dataflow:Dora",
        packages=("dora", "dora_cli", "pyarrow"),
        launch="benchmarks.published.e4.dataflow:launch",
        is_addition=True,
    ),
)
_STAGEPIPE = (
    Contestant("stagepipe", "benchmarks.published.e4.pipelines:Stagepipe"),
    Contestant(
        "stagepipe, made in place", "benchmarks.published.e4.pipelines:Stagepipe", {"loaned": True}, is_addition=True
    ),
)
_DEFAULT = {name: shape for name, shape in SHAPES.items() if name != "D"}

EXPERIMENT = Experiment(
    name="E4",
    contestants=(*_STAGEPIPE, *_PUBLISHED, *_ADDITIONS),
    payloads={"small": payloads(SMALL), "default": payloads(_DEFAULT), "full": payloads(SHAPES)},
    check=check,
    spoil=spoil,
)
