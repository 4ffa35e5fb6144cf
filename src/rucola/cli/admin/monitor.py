"""Monitoring: periodic checks of all consumer groups."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from rucola.admin import AdminClient, Finding
from rucola.cli.admin.command import call_admin, click_command, rounds
from rucola.cli.output import time_text

DEFAULT_INTERVAL_S = 60.0


@click_command("startMonitoring")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_INTERVAL_S,
    show_default=True,
    help="Seconds between two checks.",
)
@click.option("--once", is_flag=True, help="Check once, and exit.")
def start_monitoring(namesrv_addr: str, as_json: bool, interval: float, once: bool) -> None:
    """Check all consumer groups repeatedly until interrupted.

    Prints one line per finding; with --json one JSON object per line.

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
    since_ms = time.time_ns() // 1_000_000 - round(interval * 1000)

    async def request(client: AdminClient) -> list[Finding]:
        return await client.monitor.check_groups(since_ms)

    for _ in rounds(None if once else interval):
        now_ms = time.time_ns() // 1_000_000
        for finding in call_admin(namesrv_addr, request):
            click.echo(msgspec.json.encode(_json(finding)) if as_json else _text(finding, now_ms))
        # The next round starts where this one did: findings of a time range are reported once, and none is missed.
        since_ms = now_ms


def _json(finding: Finding) -> dict[str, Any]:
    return {"event": finding.event, "group": finding.group, **finding.details}


def _text(finding: Finding, now_ms: int) -> str:
    details = " ".join(f"{name}={value}" for name, value in finding.details.items())
    return f"{time_text(now_ms)} [MONITOR] {finding.event:<8} group={finding.group} {details}"
