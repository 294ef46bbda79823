"""E4: a client requests one array from another process and waits until it has arrived.

There are four shapes (float64). Each is timed including the creation of the array, as published, and with an array that
was created beforehand ("ready"). The number of the request is the seed of the array; a ready array is stamped with it.

arrays       the payload, and its check
served       the base of the contestants with a server
web          HTTP and WebSocket
segments     an array in its own shared memory segment, for HTTP and WebSocket
sockets      Listener and Client, a Unix socket, memfds, gRPC
messages     ZeroMQ and Arrow Flight
brokers      RabbitMQ and Redis
loans        iceoryx2
dataflow     dora
objects      Ray
pipelines    stagepipe
contestants  the experiment
"""

from benchmarks.published.e4.contestants import EXPERIMENT

__all__ = ["EXPERIMENT"]
