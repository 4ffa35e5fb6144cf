"""Monitoring: findings about messages that no consumer gets, with what to do, and about consumer groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import Flag, Option, Result, command
from rucola.domain.diagnosis import Finding
from rucola.presentation import Table, time_text, whole

ADVICE = {
    "QUEUE_NOT_READ": "give the topic the queue back: updateTopic -r, or updateSubGroup -q for a retry topic",
    "TOPIC_MISSING": "create the topic if its messages are needed; else they leave with the log",
    "FEWER_READ_QUEUES": "updateTopic with -r at least as great as -w",
    "FEWER_RETRY_QUEUES": "updateTopic of the %RETRY% topic with -r and -w of the group's retryQueueNums",
    "NO_RETRY_QUEUE": "updateSubGroup -q 1; -r 0 sends failures to the dead letter queue at once",
    "TRANSACTIONS_DISCARDED": "printMsg -t TRANS_CHECK_MAX_TIME_TOPIC; resumeCheckHalfMessage -i opens one again",
    "NOT_DIAGNOSED": "a broker of Apache's, or of another version: its queues that no route shows are not known",
}
"""Advice for the operator, by the reason of a finding."""


def _fields(finding: Finding) -> str:
    return " ".join(f"{name}={value}" for name, value in finding.fields.items() if name != "brokerName")


def warning(finding: Finding) -> str:
    """Describe a finding, after a change that may have caused it."""
    return f"warning: {finding.reason} {finding.subject}: {_fields(finding)}; {ADVICE.get(finding.reason, '')}"


@command("doctor")
async def doctor(client: AdminClient) -> Result:
    """Look for states in which messages wait and no consumer gets them.

    Checks every master: queues that no route shows, topics with fewer queues to read than to write, groups whose
    retries have no queue, discarded transactions. The exit code is 1 if anything is found.

    \b
    Examples:
      rucola admin doctor
      rucola admin doctor --json
    """
    found = await client.doctor.check()
    columns = "#Broker Name", whole("#Reason"), whole("#Subject"), "#Fields", "#Advice"
    rows = [
        (one.fields.get("brokerName", ""), one.reason, one.subject, _fields(one), ADVICE.get(one.reason, ""))
        for one in found
    ]
    return Result({"findings": found}, [Table(columns, rows) if found else "nothing found"], is_failure=bool(found))


@command("startMonitoring")
async def start_monitoring(
    client: AdminClient,
    interval_s: Annotated[float, Option("-i --interval", "Seconds between two checks.", min=0.001)] = 60.0,
    once: Annotated[bool, Flag("--once", "Check once, and exit.")] = False,
) -> AsyncIterator[Result]:
    """Check all consumer groups repeatedly until interrupted.

    Prints one line per finding; with --json one JSON object per line. With --once the exit code is 1 if anything is
    found: `health` says more.

    \b
    Findings:
      UNDONE     the backlog of a group, and the age of its oldest message
      FAILED     the number of dead letters of a group
      DELETED    a group skipped messages that were deleted before it consumed them
      CLIENTS    members of a group have different subscriptions, or do not answer

    \b
    Examples:
      rucola admin startMonitoring
      rucola admin startMonitoring -i 10 --json
      rucola admin startMonitoring --once
    """
    since_ms = time.time_ns() // 1_000_000 - round(interval_s * 1000)
    while True:
        now_ms = time.time_ns() // 1_000_000
        found = await client.monitor.check_groups(since_ms)
        for one in found:
            line = f"{time_text(now_ms)} [MONITOR] {one.reason:<8} group={one.subject} {_fields(one)}"
            yield Result({"event": one.reason, "group": one.subject, **one.fields}, [line], is_failure=once)
        if once:
            if not found:
                yield Result(None, [f"{time_text(now_ms)} [MONITOR] nothing found"])
            return
        # The next round starts where this one did: findings of a time range are reported once, and none is missed.
        since_ms = now_ms
        await asyncio.sleep(interval_s)
