"""Runs the commands of the catalogue for an account: authorized, and recorded in the audit unless they only read.

Those that show bodies of messages are recorded as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from hashlib import sha256
from typing import Any, Final

from rucola.admin import AdminClient
from rucola.admin.commands import CATALOGUE, Command, Result, Risk
from rucola.admin.commands.arguments import check_remote, command_line
from rucola.admin.commands.authorization import Account, authorize
from rucola.console.audit import Audit
from rucola.console.body_policy import BodyPolicy
from rucola.console.collector import Collector
from rucola.presentation import Table

MAX_READ_S: Final = 10
MAX_RESULTS: Final = 500
"""Results of a stream that are kept; a note says that there are more."""
MAX_SIZE: Final = 16 << 20
"""Bytes of the results of a stream that are kept, about."""


class Actions:
    def __init__(
        self, client: AdminClient, audit: Audit, bodies: BodyPolicy, collector: Collector | None = None
    ) -> None:
        """`collector` reads the cluster again after a change."""
        self._client = client
        self._audit = audit
        self._bodies = bodies
        self._collector = collector

    async def question(self, account: Account, one: Command, arguments: Mapping[str, Any]) -> str:
        """Return what the command will do; empty without a question. Raises MQError."""
        check_remote(one)
        authorize(account, one, arguments)
        return one.effect(arguments) or (await one.question(self._client, **arguments) if one.confirm else "")

    async def plan(self, account: Account, one: Command, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return what a command will do, and a hash of it; both empty if it changes nothing. Raises MQError.

        A caller that has read this returns the hash with its order, so that nothing runs if the state has changed.
        """
        question = "" if one.risk_of(arguments) is Risk.READ else await self.question(account, one, arguments)
        # A command with a question that has none now, such as a dry run, changes nothing.
        if not question and (one.risk is Risk.READ or one.confirm):
            return "", ""
        return question, sha256(f"{command_line(one, arguments)}\n{question}".encode()).hexdigest()

    async def changes(self, account: Account, one: Command, arguments: Mapping[str, Any]) -> Table | None:
        """Return what the command would change now, in detail, if it can say. Raises MQError."""
        authorize(account, one, arguments)
        return await one.changes(self._client, **arguments)

    async def run(self, account: Account, peer: str, one: Command, arguments: Mapping[str, Any]) -> list[Result]:
        """Run a command for an account at the address `peer`. Raises MQError."""
        check_remote(one)
        authorize(account, one, arguments)
        is_read = one.risk_of(arguments) is Risk.READ
        if is_read and not one.shows_bodies:
            return await self._results(one, arguments)
        async with self._audit.recorded(account.name, peer, command_line(one, arguments)) as entry:
            with self._bodies.applied(account):
                results = await self._results(one, arguments)
            entry.has_failed = any(result.is_failure for result in results)
            entry.undo = "; ".join(
                command_line(CATALOGUE[result.undo[0]], result.undo[1]) for result in results if result.undo is not None
            )
        if is_read or self._collector is None:
            return results
        await self._collector.refresh()
        self._collector.forget_brokers()
        for name in ("group", "group_name"):
            self._collector.forget_group(str(arguments.get(name)))
        return results

    async def _results(self, one: Command, arguments: Mapping[str, Any]) -> list[Result]:
        if one.waits:  # as `drain`: the wait ends with the request
            arguments = {**arguments, "timeout_s": min(arguments.get("timeout_s") or MAX_READ_S, MAX_READ_S)}
        results: list[Result] = []
        later: list[Result] = []
        note, size, has_failed = "", 0, False
        is_read = one.risk_of(arguments) is Risk.READ
        try:
            # A change is never interrupted, however many results it has; the last one may be their sum.
            async with asyncio.timeout(MAX_READ_S if is_read else None):
                async with aclosing(one.run(self._client, **arguments)) as found:
                    async for result in found:
                        if len(results) < MAX_RESULTS and size < MAX_SIZE:
                            results.append(result)
                            if one.is_stream:
                                size += len(str(result.value)) + sum(len(str(part)) for part in result.text or ())
                            continue
                        note = f"only the first {len(results)} results are shown"
                        later = [result]
                        if is_read:
                            break
        except TimeoutError:
            note = f"stopped after {MAX_READ_S} s: the results are incomplete"
            has_failed = not one.is_stream  # without any result
        return [*results, *([] if is_read else later), *([Result(None, [], [note], has_failed)] if note else [])]
