"""The floor of every request: an asyncio server that reads and writes as many bytes and parses none.

Like the broker it is a BufferedProtocol that answers all requests of one read in one write. The size of a request is
an argument, so it only counts bytes.

    python echo.py REQUEST_SIZE ANSWER_IN_HEX
"""

from __future__ import annotations

import asyncio
import signal
import sys


class Echo(asyncio.BufferedProtocol):
    """Answers every `request_size` bytes with `answer`."""

    def __init__(self, request_size: int, answer: bytes, buffer: memoryview) -> None:
        self._request_size = request_size
        self._answer = answer
        self._buffer = buffer
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        whole, self._received = divmod(self._received + nbytes, self._request_size)
        if whole:
            self._transport.write(self._answer if whole == 1 else self._answer * whole)  # type: ignore[attr-defined]


async def serve(request_size: int, answer: bytes) -> None:
    loop = asyncio.get_running_loop()
    buffer = memoryview(bytearray(256 * 1024))
    server = await loop.create_server(lambda: Echo(request_size, answer, buffer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"ready {host}:{port}", flush=True)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), bytes.fromhex(sys.argv[2])))
