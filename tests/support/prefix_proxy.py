"""A reverse proxy that serves a web server below a path, as nginx does with `location /tools/ { proxy_pass ...; }`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from support.ports import HOST

CHUNK = 64 * 1024


class PrefixProxy:
    """One request a connection; what comes back is passed on as it comes, so that a stream of events goes through."""

    def __init__(self, port: int, prefix: str) -> None:
        self.prefix = prefix
        self.url = ""
        self.strays: list[str] = []
        """Addresses outside the prefix that were asked for."""
        self.passed = 0
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._pass_on(reader, writer)
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *given = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        method, address, version = line.split(" ")
        if not address.startswith(f"{self.prefix}/"):
            self.strays.append(address)
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        self.passed += 1
        headers = dict(one.split(": ", 1) for one in given)
        lower = {name.lower(): value for name, value in headers.items()}
        added = {"Connection": "close", "X-Forwarded-Prefix": self.prefix, "X-Forwarded-Proto": "http"}
        sent = {name: value for name, value in headers.items() if name.lower() != "connection"} | added
        head = [f"{method} {address.removeprefix(self.prefix)} {version}", *(f"{k}: {v}" for k, v in sent.items())]
        body = await reader.readexactly(int(lower.get("content-length", 0)))
        answers, requests = await asyncio.open_connection(HOST, self._port)
        requests.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        gone = asyncio.create_task(reader.read(1))  # the browser has closed its page
        try:
            while True:
                chunk = asyncio.create_task(answers.read(CHUNK))
                await asyncio.wait((chunk, gone), return_when=asyncio.FIRST_COMPLETED)
                if not chunk.done() or not chunk.result():
                    chunk.cancel()
                    break
                writer.write(chunk.result())
                await writer.drain()
        finally:
            gone.cancel()
            requests.close()


@asynccontextmanager
async def prefix_proxy(port: int, prefix: str = "/tools/rucola") -> AsyncIterator[PrefixProxy]:
    """A proxy on a free port in front of a server on this machine."""
    proxy = PrefixProxy(port, prefix)
    server = await asyncio.start_server(proxy.serve, HOST, 0)
    proxy.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{prefix}"
    async with server:
        yield proxy
