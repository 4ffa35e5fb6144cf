"""Claims in Redis, checked before the database's, so that most duplicates need no database query.

They are an optimization: the database's claim decides. If Redis is down, slow, flushed or has evicted the key, more
deliveries reach the database and nothing else changes. After a failure Redis is not used for `BACKOFF_S`, so that an
outage does not cost every message a timeout.

The key holds the worker's token, so that only the worker that set it renews and deletes it (compare-and-delete).
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from redis import Redis
from redis import asyncio as redis_asyncio
from redis.exceptions import RedisError

from rucola.outages import Outages
from rucola.reliable.errors import ReliableError

logger = logging.getLogger(__name__)

BACKOFF_S: Final = 5.0
TIMEOUT_S: Final = 0.5
SUBJECT: Final = "a call of Redis (meanwhile, the database alone decides)"

# Scripts run atomically in Redis: between a GET and a PEXPIRE of the client the key could change its owner.
_RENEW: Final = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
)
_RELEASE: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisClaims:
    """Claims in a Redis, given as a URL or a redis-py client.

    For async listeners the client is an asyncio client. A client that is passed in should have a short
    `socket_timeout`.
    """

    def __init__(
        self,
        client: Redis | redis_asyncio.Redis | str,
        *,
        prefix: str = "rucola:claim:",
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self._client: Any = client
        self._prefix = prefix
        self._backoff_s = backoff_s
        # Monotonic time until which Redis is not used. Threads race on it without harm: at worst one more call fails.
        self._backoff_until = 0.0
        self._outages = Outages(logger)

    def bind(self, is_async: bool) -> None:
        """Prepare for async or blocking calls. ReliableError for a client of the other kind."""
        if isinstance(self._client, str):
            kind: Any = redis_asyncio.Redis if is_async else Redis
            self._client = kind.from_url(self._client, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        if isinstance(self._client, redis_asyncio.Redis) != is_async:
            wanted = "redis.asyncio.Redis" if is_async else "redis.Redis"
            raise ReliableError(f"this listener needs a client of class {wanted}, or a URL")

    def key(self, group: str, message_id: str) -> str:
        return f"{self._prefix}{group}:{message_id}"

    def take(self, key: str, token: str, lease_ms: int) -> bool | None:
        """Set the key if free; return whether that succeeded, None if Redis does not respond."""
        return self._ask(lambda: self._client.set(key, token, nx=True, px=lease_ms) is not None)

    def renew(self, key: str, token: str, lease_ms: int) -> bool | None:
        return self._ask(lambda: bool(self._client.eval(_RENEW, 1, key, token, lease_ms)))

    def release(self, key: str, token: str) -> bool | None:
        return self._ask(lambda: bool(self._client.eval(_RELEASE, 1, key, token)))

    async def take_async(self, key: str, token: str, lease_ms: int) -> bool | None:
        """Set the key as `take` does, on an event loop."""
        try:
            if self._is_backing_off():
                return None
            return self._answered(await self._client.set(key, token, nx=True, px=lease_ms) is not None)
        except (RedisError, OSError) as error:
            self._failed(error)
            return None

    async def renew_async(self, key: str, token: str, lease_ms: int) -> bool | None:
        try:
            if self._is_backing_off():
                return None
            return self._answered(bool(await self._client.eval(_RENEW, 1, key, token, lease_ms)))
        except (RedisError, OSError) as error:
            self._failed(error)
            return None

    async def release_async(self, key: str, token: str) -> bool | None:
        try:
            if self._is_backing_off():
                return None
            return self._answered(bool(await self._client.eval(_RELEASE, 1, key, token)))
        except (RedisError, OSError) as error:
            self._failed(error)
            return None

    def _ask(self, question: Any) -> bool | None:
        try:
            return None if self._is_backing_off() else self._answered(bool(question()))
        except (RedisError, OSError) as error:
            self._failed(error)
            return None

    def _answered(self, answer: bool) -> bool:
        self._outages.succeeded(SUBJECT)
        return answer

    def _is_backing_off(self) -> bool:
        return time.monotonic() < self._backoff_until

    def _failed(self, error: Exception) -> None:
        if not self._is_backing_off():
            self._outages.failed(SUBJECT, error)
        self._backoff_until = time.monotonic() + self._backoff_s
