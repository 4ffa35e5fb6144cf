"""An etcd of one member on the simulated network: the HTTP/JSON gateway, as far as the coordination uses it.

Whatever it has answered is on its disk: `EtcdData` is what a process that is ended leaves to the next one.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from simulation.network import SimulatedLoop, SimulatedSocket

ETCD_PORT = 2379
_NOT_FOUND = 5


@dataclass
class Item:
    value: bytes
    created: int
    changed: int
    lease: int


@dataclass
class EtcdData:
    revision: int = 1
    keys: dict[bytes, Item] = field(default_factory=dict)
    leases: dict[int, float] = field(default_factory=dict)
    """Seconds to live of each."""
    last_lease: int = 0


class Etcd:
    """One process. As etcd does after an election, it lets all leases begin again."""

    def __init__(self, loop: SimulatedLoop, data: EtcdData) -> None:
        self._loop = loop
        self._data = data
        self._ends_s: dict[int, float] = {}
        self._watching: list[Callable[[], None]] = []

    async def start(self) -> None:
        sock = SimulatedSocket(self._loop)
        sock.bind(("127.0.0.1", ETCD_PORT))
        self._server = await self._loop.create_server(lambda: _Connection(self), sock=sock)
        for lease in self._data.leases:
            self._extend(lease)

    async def stop(self) -> None:
        self._server.close()

    # Leases.

    def _extend(self, lease: int) -> None:
        end_s = self._ends_s[lease] = self._loop.time() + self._data.leases[lease]
        self._loop.call_at(end_s, self._expire, lease, end_s)

    def _expire(self, lease: int, end_s: float) -> None:
        if self._ends_s.get(lease) == end_s:
            self.revoke(lease)

    def revoke(self, lease: int) -> bool:
        """End a lease, and delete its keys."""
        self._ends_s.pop(lease, None)
        was_there = self._data.leases.pop(lease, None) is not None
        keys = [key for key, item in self._data.keys.items() if item.lease == lease]
        for key in keys:
            del self._data.keys[key]
        if keys:
            self._changed()
        return was_there

    def revoke_all(self) -> int:
        """End all leases, as an operator may; return how many there were."""
        leases = list(self._data.leases)
        for lease in leases:
            self.revoke(lease)
        return len(leases)

    def _changed(self) -> None:
        self._data.revision += 1
        for notify in list(self._watching):
            notify()

    # Requests.

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` after each change; return what ends that."""
        self._watching.append(notify)
        return lambda: self._watching.remove(notify)

    def call(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """The response to a request; KeyError if it names a lease that there is not."""
        return getattr(self, "_" + path.removeprefix("/v3/").replace("/", "_"))(request) | {
            "header": {"revision": str(self._data.revision)}
        }

    def _lease_grant(self, request: dict[str, Any]) -> dict[str, Any]:
        self._data.last_lease += 1
        lease = self._data.last_lease
        self._data.leases[lease] = float(request["TTL"])
        self._extend(lease)
        return {"ID": str(lease), "TTL": request["TTL"]}

    def _lease_keepalive(self, request: dict[str, Any]) -> dict[str, Any]:
        lease = int(request["ID"])
        if lease not in self._data.leases:
            return {"result": {"ID": request["ID"]}}
        self._extend(lease)
        return {"result": {"ID": request["ID"], "TTL": str(int(self._data.leases[lease]))}}

    def _lease_revoke(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self.revoke(int(request["ID"])):
            raise KeyError(request["ID"])
        return {}

    def _kv_range(self, request: dict[str, Any]) -> dict[str, Any]:
        begin, end = b64decode(request["key"]), b64decode(request["range_end"])
        return {
            "kvs": [
                {
                    "key": b64encode(key).decode(),
                    "value": b64encode(item.value).decode(),
                    "create_revision": str(item.created),
                    "mod_revision": str(item.changed),
                    "lease": str(item.lease),
                }
                for key, item in sorted(self._data.keys.items())
                if begin <= key < end
            ]
        }

    def _kv_txn(self, request: dict[str, Any]) -> dict[str, Any]:
        keys = self._data.keys
        for compare in request["compare"]:
            item = keys.get(b64decode(compare["key"]))
            if int(compare["mod_revision"]) != (0 if item is None else item.changed):
                return {"succeeded": False}
        puts = [put["request_put"] for put in request["success"]]
        for put in puts:
            if int(put["lease"]) and int(put["lease"]) not in self._data.leases:
                raise KeyError(put["lease"])
        revision = self._data.revision + 1
        for put in puts:
            key = b64decode(put["key"])
            created = keys[key].created if key in keys else revision
            keys[key] = Item(b64decode(put["value"]), created, revision, int(put["lease"]))
        self._changed()
        return {"succeeded": True}


class _Connection(asyncio.Protocol):
    """A connection of HTTP/1.1: requests with a body of known length, one after the other."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._data = b""
        self._unwatch: Callable[[], None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._unwatch is not None:
            self._unwatch()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._data[:end].decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            whole = end + 4 + int(headers["content-length"])
            if len(self._data) < whole:
                return
            body, self._data = self._data[end + 4 : whole], self._data[whole:]
            self._answer(first.split(" ")[1], msgspec.json.decode(body))

    def _answer(self, path: str, request: dict[str, Any]) -> None:
        if path == "/v3/watch":
            self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self._notify()
            self._unwatch = self._etcd.watch(self._notify)
            return
        status, answer = "200 OK", dict[str, Any]()
        try:
            answer = self._etcd.call(path, request)
        except KeyError:
            status = "404 Not Found"
            answer = {"code": _NOT_FOUND, "message": "etcdserver: requested lease not found"}
        body = msgspec.json.encode(answer)
        self._transport.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    def _notify(self) -> None:
        line = b'{"result":{}}\n'
        self._transport.write(b"%x\r\n%b\r\n" % (len(line), line))
