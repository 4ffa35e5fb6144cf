"""Visitors of the console: accounts with passwords, sessions, and users that a trusted proxy names.

The file of accounts has a line for each, as Java's properties: the hash that `rucola console --hash-password` prints (-
for users that only a proxy names), and the grants (see `rucola.admin.commands.authorization`):

    ann=scrypt:16384:8:1:SALT:HASH operator *
    bob=scrypt:16384:8:1:SALT:HASH viewer Topic:orders-*, viewer Group:billing

Without a file every visitor is the account `local`, which may do everything. A session is a random cookie, stored as
its hash. The token of a form is derived from that cookie, so that a form of another site has none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import sqlite3
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from pathlib import Path
from typing import Final

from rucola import settings
from rucola.admin.commands.authorization import Account, parse_grants
from rucola.console.database import Database
from rucola.errors import ConfigError

SCHEMA: Final = "CREATE TABLE IF NOT EXISTS session (hash BLOB PRIMARY KEY, account TEXT, expires_s INTEGER);"
SESSION_S: Final = 12 * 3600
LOCAL: Final = Account("local", parse_grants("admin"))
_COST: Final = 16384, 8, 1
MAX_FAILURES: Final = 5
FAILURES_S: Final = 60.0
_MAX_TRACKED: Final = 10_000


class TooManyFailures(Exception):
    """Logins that failed too often from one address."""


class Accounts:
    def __init__(self, path: Path | None, database: Database) -> None:
        self.is_login_required = path is not None
        self._database = database
        self._key = secrets.token_bytes(32)
        self._accounts: dict[str, Account] = {}
        self._hashes: dict[str, str] = {}
        self._verified: dict[str, bytes] = {}
        """A hash of the password that was right, by name; its key is gone with the process."""
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        for name, line in (settings.read(path) if path else {}).items():
            password, _, grants = line.strip().partition(" ")
            if not (password == "-" or password.startswith("scrypt:")):  # noqa: S105 - no password
                raise ConfigError(f"{path}: account {name}: expected a hash of --hash-password, or -", subject=name)
            self._accounts[name] = Account(name, parse_grants(grants))
            self._hashes[name] = password

    def named(self, name: str) -> Account | None:
        """Return the account of a user that a trusted proxy names."""
        return self._accounts.get(name)

    async def checked(self, name: str, password: str, peer: str) -> Account | None:
        """Return the account with a name and password, or None if one is wrong. Raises TooManyFailures."""
        now_s = time.monotonic()
        failures = [at_s for at_s in self._failures.get(peer, []) if now_s - at_s < FAILURES_S]
        if len(failures) >= MAX_FAILURES:
            raise TooManyFailures
        # A script sends its password with each request, and scrypt takes a twentieth of a second.
        digest = hmac.digest(self._key, f"{name}\n{password}".encode(), "sha256")
        if hmac.compare_digest(self._verified.get(name, b""), digest):
            return self._accounts[name]
        # Before the password is looked at, since others may try meanwhile.
        tried = self._failures[peer] = [*failures, now_s]
        self._failures.move_to_end(peer)
        if len(self._failures) > _MAX_TRACKED:
            self._failures.popitem(last=False)
        # A name that does not exist takes as long as one that does.
        stored = self._hashes.get(name, "-")
        is_right = await asyncio.to_thread(_is_password, stored if stored != "-" else _UNKNOWN, password)
        if not is_right or stored == "-":
            return None
        self._failures[peer] = [at_s for at_s in self._failures.get(peer, tried) if at_s != now_s]
        self._verified[name] = digest
        return self._accounts[name]

    async def login(self, name: str, password: str, peer: str) -> str | None:
        """Return the cookie of a new session, or None for a wrong name or password. Raises TooManyFailures."""
        if await self.checked(name, password, peer) is None:
            return None
        cookie = secrets.token_urlsafe(32)
        now = int(time.time())

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM session WHERE expires_s<?", (now,))
            connection.execute("INSERT INTO session VALUES (?, ?, ?)", (_hash(cookie), name, now + SESSION_S))

        await self._database.run(insert)
        return cookie

    async def account_of(self, cookie: str) -> Account | None:
        """Return the account of a session that has not expired."""
        if not self.is_login_required:
            return LOCAL
        query = "SELECT account FROM session WHERE hash=? AND expires_s>?"
        values = _hash(cookie), int(time.time())
        row = await self._database.run(lambda connection: connection.execute(query, values).fetchone())
        return self._accounts.get(row[0]) if row else None

    async def logout(self, cookie: str) -> None:
        await self._database.run(
            lambda connection: connection.execute("DELETE FROM session WHERE hash=?", (_hash(cookie),))
        )

    def token(self, cookie: str) -> str:
        """Return the token of the forms of a session."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def is_token(self, cookie: str, token: str) -> bool:
        return bool(cookie) and hmac.compare_digest(self.token(cookie).encode(), token.encode())


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()


def hash_password(password: str) -> str:
    """Return the hash of a password, for the file of accounts."""
    salt = secrets.token_bytes(16)
    derived = hashlib.scrypt(password.encode(), salt=salt, n=_COST[0], r=_COST[1], p=_COST[2])
    return ":".join(["scrypt", *map(str, _COST), *(urlsafe_b64encode(one).decode() for one in (salt, derived))])


def _is_password(stored: str, password: str) -> bool:
    _, n, r, p, salt, derived = stored.split(":")
    found = hashlib.scrypt(password.encode(), salt=urlsafe_b64decode(salt), n=int(n), r=int(r), p=int(p))
    return hmac.compare_digest(found, urlsafe_b64decode(derived))


_UNKNOWN: Final = "scrypt:16384:8:1:AAAAAAAAAAAAAAAAAAAAAA==:AAAA"
