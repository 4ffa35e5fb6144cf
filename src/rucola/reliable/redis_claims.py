"""Claims in Redis, taken before the database's, so that duplicates need no database query.

    a duplicate of a message that is done     acknowledged, for `DONE_MS` after it was done
    a duplicate of one that a worker has      delivered again later

They are an optimization: only the database's claim lets a worker start, and a message is marked as done after its
commit. If Redis is down, slow or flushed, more deliveries reach the database. After a failure Redis is not used for
`BACKOFF_S`, so that an outage does not cost every message a timeout.

The key holds the worker's token: only that worker renews, marks and deletes it.
"""

from __future__ import annotations

import inspect
import logging
import time
from enum import Enum
from typing import Any, Final

from redis import Redis
from redis import asyncio as redis_asyncio
from redis.exceptions import RedisError

from rucola.outages import Outages
from rucola.reliable.errors import ReliableError
from rucola.reliable.receipts import GroupDelivery

logger = logging.getLogger(__name__)

BACKOFF_S: Final = 5.0
TIMEOUT_S: Final = 0.5
SUBJECT: Final = "a call of Redis (meanwhile, the database alone decides)"

DONE_MS: Final = 60_000
"""Duplicates of lost responses and rebalances arrive within it."""

_DONE: Final = "done"

# Scripts run atomically in Redis: between a GET and a PEXPIRE of the client the key could change its owner.
_TAKE: Final = (
    "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return ARGV[1] end "
    "return redis.call('get', KEYS[1])"
)
_FINISH: Final = (
    f"if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('set', KEYS[1], '{_DONE}', 'PX', ARGV[2]) "
    "return 1 end return 0"
)
_RENEW: Final = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
)
_RELEASE: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class KeyState(Enum):
    TAKEN = "TAKEN"
    HELD = "HELD"
    DONE = "DONE"


class RedisClaims:
    """Claims in Redis, by URL or redis-py client (asyncio for async listeners), best with a short `socket_timeout`."""

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

    async def take(self, delivery: GroupDelivery, lease_ms: int) -> KeyState | None:
        """Set the message's key if it is free; return its state, None if Redis does not respond."""
        answer = await self._call(_TAKE, delivery, delivery.token, lease_ms)
        value = answer.decode() if isinstance(answer, bytes) else answer
        if value is None:
            return None
        return KeyState.TAKEN if value == delivery.token else KeyState.DONE if value == _DONE else KeyState.HELD

    async def renew(self, delivery: GroupDelivery, lease_ms: int) -> None:
        await self._call(_RENEW, delivery, delivery.token, lease_ms)

    async def finish(self, delivery: GroupDelivery) -> None:
        """Mark the message as done, if the key is still held."""
        await self._call(_FINISH, delivery, delivery.token, DONE_MS)

    async def release(self, delivery: GroupDelivery) -> None:
        await self._call(_RELEASE, delivery, delivery.token)

    async def _call(self, script: str, delivery: GroupDelivery, *arguments: str | int) -> Any:
        """Run a script, without suspending if the client blocks; None if Redis does not respond."""
        if self._is_backing_off():
            return None
        try:
            answer = self._client.eval(script, 1, f"{self._prefix}{delivery.group}:{delivery.message_id}", *arguments)
            if inspect.isawaitable(answer):
                answer = await answer
        except (RedisError, OSError) as error:
            if not self._is_backing_off():
                self._outages.failed(SUBJECT, error)
            self._backoff_until = time.monotonic() + self._backoff_s
            return None
        self._outages.succeeded(SUBJECT)
        return answer

    def _is_backing_off(self) -> bool:
        return time.monotonic() < self._backoff_until
