"""Client of etcd 3, by its HTTP/JSON gateway: leases, ranges, transactions and watches.

Keys and values are base64 in JSON, and 64-bit integers are text. Calls have a timeout and are tried at one endpoint
after the other, the last good one first, if that is safe to repeat; a transaction with an unknown outcome raises
`OutcomeUnknown` and is never repeated. Requires the extra `rucola-mq[etcd]` (httpx), imported when a client is created.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rucola.errors import ConfigError, MQError, missing_extra

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_SIZE: Final = 4 << 20
"""Bytes; a group's response has some hundred."""
RETRY_PAUSE_S: Final = 0.05

# Codes of gRPC.
_NOT_FOUND: Final = 5
_UNAUTHENTICATED: Final = 16
_DEFINITE: Final = frozenset({3, _NOT_FOUND, 6, 7, 8, 9, 11, 12, _UNAUTHENTICATED})
"""Codes of refused requests. After others, such as timeouts, the outcome is unknown."""


class EtcdError(MQError):
    """A request that etcd refused, or that no endpoint answered in time."""


class LeaseNotFound(EtcdError):
    """A lease that has expired or was revoked."""


class OutcomeUnknown(EtcdError):
    """A transaction without a response: it may have been executed, or may still be."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Condition: revision of a key's last change, 0 for a missing key."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class KeyRange:
    revision: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    endpoints: tuple[str, ...]
    user: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Split addresses at `,` or `;`; `http://` is the default scheme. ConfigError if malformed."""
    found = []
    for part in text.replace(";", ",").split(","):
        address = part.strip().rstrip("/")
        if not address:
            continue
        scheme, separator, rest = address.partition("://")
        if not separator:
            scheme, rest = "http", address
        host, _, port = rest.rpartition(":")
        if scheme not in ("http", "https") or not host or not port.isdigit():
            raise ConfigError(
                f"etcdEndpoints: {address!r} is no address such as http://10.0.0.1:2379", subject="etcdEndpoints"
            )
        found.append(f"{scheme}://{rest}")
    return tuple(found)


class EtcdClient:
    """Client of one etcd cluster, an async context manager. `timeout_s` bounds every call except `watch`."""

    def __init__(self, access: EtcdAccess, timeout_s: float) -> None:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise ConfigError(f"etcdEndpoints: {missing_extra(error, 'etcd')}") from None
        if not access.endpoints:
            raise ConfigError("etcdEndpoints: no address", subject="etcdEndpoints")
        self._errors = (httpx.HTTPError, httpx.InvalidURL)
        self._not_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
        self._silent = httpx.ReadTimeout
        self._access = access
        self._timeout_s = timeout_s
        self._last = 0
        self._token = ""
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
        # Ignores proxies of the environment, which lead to the Internet.
        self._http: httpx.AsyncClient = httpx.AsyncClient(
            verify=_tls_context(access), trust_env=False, timeout=httpx.Timeout(timeout_s)
        )

    async def __aenter__(self) -> EtcdClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Create a lease; return its id, and its time to live in seconds, which etcd may have raised."""
        answer = await self._call("/v3/lease/grant", {"TTL": str(ttl_s)})
        return int(answer["ID"]), int(answer["TTL"])

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease; return its time to live in seconds. LeaseNotFound if it has ended."""
        answer = await self._call("/v3/lease/keepalive", {"ID": str(lease)})
        ttl_s = int(answer.get("result", {}).get("TTL", 0))
        if ttl_s <= 0:
            raise LeaseNotFound(f"etcd has no lease {lease:x}: it has expired, or was revoked")
        return ttl_s

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys; no error if it has already ended."""
        try:
            await self._call("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseNotFound:
            pass

    async def range(self, prefix: str) -> KeyRange:
        """Read all keys with a prefix, linearizably."""
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])
        answer = await self._call("/v3/kv/range", {"key": _text(begin), "range_end": _text(end)})
        items = tuple(_key_value(item) for item in answer.get("kvs", ()))
        return KeyRange(int(answer["header"]["revision"]), items)

    async def transact(self, compares: Iterable[Compare], puts: Iterable[Put]) -> int | None:
        """Do all puts if all conditions hold; return the new revision, or None. OutcomeUnknown, LeaseNotFound."""
        request = {
            "compare": [
                {"key": _text(each.key), "target": "MOD", "result": "EQUAL", "mod_revision": str(each.mod_revision)}
                for each in compares
            ],
            "success": [
                {"request_put": {"key": _text(each.key), "value": _text(each.value), "lease": str(each.lease)}}
                for each in puts
            ],
        }
        answer = await self._call("/v3/kv/txn", request, is_repeatable=False)
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    async def watch(self, prefix: str, silence_s: float) -> AsyncIterator[None]:
        """Yield at the start, and on changes below a prefix, until EtcdError or `silence_s` without data."""
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])
        request = {"create_request": {"key": _text(begin), "range_end": _text(end)}}
        endpoint = self._access.endpoints[self._last]
        content = msgspec.json.encode(request)
        try:
            headers = await self._headers()
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout_s):
                    answering = self._http.stream(
                        "POST",
                        f"{endpoint}/v3/watch",
                        content=content,
                        headers=headers,
                        timeout=(None, silence_s, None, None),  # of reads
                    )
                    answer = await stack.enter_async_context(answering)
                async for _ in answer.aiter_lines():  # one JSON object per line
                    yield None
        except self._silent:
            return
        except (*self._errors, TimeoutError) as error:
            raise EtcdError(f"the watch at {endpoint} ended: {_reason(error)}") from None
        raise EtcdError(f"the watch at {endpoint} ended")

    async def _call(self, path: str, request: Mapping[str, Any], *, is_repeatable: bool = True) -> Any:
        """Send a request until an endpoint answers, or the timeout."""
        endpoints = self._access.endpoints
        reason = ""
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    for _ in endpoints:
                        endpoint = endpoints[self._last]
                        try:
                            return await self._post(endpoint, path, request)
                        except self._not_sent as error:
                            reason = f"{endpoint}: {_reason(error)}"
                        except (*self._errors, _Unavailable) as error:
                            reason = f"{endpoint}: {_reason(error)}"
                            if not is_repeatable:
                                raise OutcomeUnknown(f"etcd did not answer a transaction: {reason}") from None
                        self._last = (self._last + 1) % len(endpoints)
                    await asyncio.sleep(RETRY_PAUSE_S)
        except TimeoutError:
            # The silent endpoint: the next call starts with another.
            silent, self._last = endpoints[self._last], (self._last + 1) % len(endpoints)
            reason = reason or f"{silent}: no answer within {self._timeout_s:g} s"
            kind = EtcdError if is_repeatable else OutcomeUnknown
            raise kind(f"no endpoint of etcd answers: {reason}") from None

    async def _post(self, endpoint: str, path: str, request: Mapping[str, Any]) -> Any:
        for attempt in range(2):
            answer = await self._http.post(
                endpoint + path,
                content=msgspec.json.encode(request),
                headers=await self._headers(endpoint),
                timeout=self._timeout_s / len(self._access.endpoints),
            )
            body = _decode(answer.content, endpoint)
            if answer.status_code == 200 and "error" not in body:
                return body
            # Streams, such as keepalive, have the error inside.
            error = body["error"] if isinstance(body.get("error"), dict) else body
            code = int(error.get("code", error.get("grpc_code", 0)))
            message = str(error.get("message") or error.get("error") or f"HTTP status {answer.status_code}")
            if attempt == 0 and self._access.user and (code == _UNAUTHENTICATED or "auth token" in message):
                self._token = ""  # tokens expire after some minutes
                continue
            if code == _NOT_FOUND and "lease" in message:
                raise LeaseNotFound(f"{endpoint}: {message}")
            if code in _DEFINITE:
                raise EtcdError(f"{endpoint} refused {path}: {message}")
            raise _Unavailable(message)
        raise AssertionError

    async def _headers(self, endpoint: str = "") -> dict[str, str]:
        access = self._access
        if not access.user:
            return {}
        if not self._token:
            endpoint = endpoint or access.endpoints[self._last]
            request = {"name": access.user, "password": access.password}
            answer = await self._http.post(f"{endpoint}/v3/auth/authenticate", content=msgspec.json.encode(request))
            body = _decode(answer.content, endpoint)
            if "token" not in body:
                raise EtcdError(f"{endpoint} does not admit the user {access.user}: {body.get('message', '')}")
            self._token = str(body["token"])
        return {"Authorization": self._token}


class _Unavailable(Exception):
    """An error of an endpoint that leaves the outcome open, for example without a quorum."""


def _tls_context(access: EtcdAccess) -> ssl.SSLContext | bool:
    """Create the context for https. ConfigError if the files cannot be used."""
    if not any(endpoint.startswith("https") for endpoint in access.endpoints):
        return False
    try:
        context = ssl.create_default_context(cafile=access.ca_file or None)
        if access.cert_file:
            context.load_cert_chain(access.cert_file, access.key_file or None)
    except OSError as error:
        raise ConfigError(f"the certificates for etcd cannot be used: {error}") from None
    return context


def _text(value: str | bytes) -> str:
    return b64encode(value.encode() if isinstance(value, str) else value).decode()


def _key_value(item: Mapping[str, str]) -> KeyValue:
    return KeyValue(
        b64decode(item["key"]).decode(),
        b64decode(item.get("value", "")),
        int(item["create_revision"]),
        int(item["mod_revision"]),
        int(item.get("lease", 0)),
    )


def _decode(content: bytes, endpoint: str) -> Any:
    if len(content) > MAX_ANSWER_SIZE:
        raise EtcdError(f"{endpoint}: an answer of {len(content)} bytes")
    try:
        body = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise _Unavailable(f"an answer that is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise _Unavailable("an answer that is no JSON object")
    return body


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
