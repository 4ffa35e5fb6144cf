"""Runs the commands of the catalogue for an account: authorized, and recorded in the audit if they change anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from rucola.admin import AdminClient
from rucola.admin.commands import Command, Result, Risk
from rucola.admin.commands.arguments import check_remote, command_line
from rucola.admin.commands.authorization import Account, authorize
from rucola.console.audit import Audit
from rucola.console.collector import Collector

MAX_READ_S: Final = 10
MAX_RESULTS: Final = 500
"""Results of a stream that are kept; its reader is told that there are more."""


class Actions:
    def __init__(self, client: AdminClient, audit: Audit, collector: Collector) -> None:
        self._client = client
        self._audit = audit
        self._collector = collector

    async def question(self, account: Account, one: Command, arguments: Mapping[str, Any]) -> str:
        """Return what the command will do; empty if it need not be asked. Raises MQError."""
        check_remote(one)
        authorize(account, one, arguments)
        return await one.question(self._client, **arguments) if one.confirm else ""

    async def run(self, account: Account, peer: str, one: Command, arguments: Mapping[str, Any]) -> list[Result]:
        """Run a command for an account at the address `peer`. Raises MQError."""
        check_remote(one)
        authorize(account, one, arguments)
        if one.risk is Risk.READ:
            return await self._results(one, arguments)
        entry = await self._audit.begin(account.name, peer, command_line(one, arguments))
        outcome = "interrupted"
        try:
            results = await self._results(one, arguments)
            outcome = "failure" if any(result.is_failure for result in results) else "success"
        except Exception as error:
            outcome = f"failure: {error}"
            raise
        finally:
            await self._audit.end(entry, outcome)
        await self._collector.refresh()
        for name in ("group", "group_name"):
            self._collector.group_progress.forget(str(arguments.get(name)))
        return results

    async def _results(self, one: Command, arguments: Mapping[str, Any]) -> list[Result]:
        results: list[Result] = []
        note = ""
        try:
            # A change is never interrupted.
            async with asyncio.timeout(MAX_READ_S if one.risk is Risk.READ else None):
                async with aclosing(one.run(self._client, **arguments)) as found:
                    async for result in found:
                        if len(results) == MAX_RESULTS:
                            note = f"only the first {MAX_RESULTS} results are shown"
                            break
                        results.append(result)
        except TimeoutError:
            note = f"stopped after {MAX_READ_S} s: the results are incomplete"
        return [*results, Result(None, [], [note])] if note else results
