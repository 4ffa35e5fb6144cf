"""Doctor: findings about messages that no consumer gets."""

from __future__ import annotations

import sys

import click

from rucola.admin import AdminClient
from rucola.cli.admin.command import call_admin, command
from rucola.cli.output import print_json, print_table, whole
from rucola.protocol.diagnosis import Finding

_ADVICE = {
    "QUEUE_NOT_READ": "give the topic the queue back: updateTopic -r, or updateSubGroup -q for a retry topic",
    "TOPIC_MISSING": "create the topic if its messages are needed; else they leave with the log",
    "FEWER_READ_QUEUES": "updateTopic with -r at least as great as -w",
    "FEWER_RETRY_QUEUES": "updateTopic of the %RETRY% topic with -r and -w of the group's retryQueueNums",
    "NO_RETRY_QUEUE": "updateSubGroup -q 1; -r 0 sends failures to the dead letter queue at once",
    "TRANSACTIONS_DISCARDED": "printMsg -t TRANS_CHECK_MAX_TIME_TOPIC; resumeCheckHalfMessage -i opens one again",
    "NOT_DIAGNOSED": "a broker of Apache's, or of another version: its queues that no route shows are not known",
}


@command("doctor")
def doctor(namesrv_addr: str, as_json: bool) -> None:
    """Look for states in which messages wait and no consumer gets them.

    Checks every master: queues that no route shows, topics with fewer queues to read than to write, groups whose
    retries have no queue, discarded transactions. The exit code is 1 if anything is found.

    \b
    Examples:
      rucola admin doctor
      rucola admin doctor --json
    """

    async def request(client: AdminClient) -> list[Finding]:
        return await client.doctor.check()

    found = call_admin(namesrv_addr, request)
    if as_json:
        print_json({"findings": found})
    elif found:
        columns = ("#Broker Name", whole("#Reason"), whole("#Subject"), "#Fields", "#Advice")
        print_table(columns, [_row(finding) for finding in found])
    else:
        click.echo("nothing found")
    if found:
        sys.exit(1)


def warn(found: list[Finding]) -> None:
    """Print findings on stderr, after a change that may have caused them."""
    for finding in found:
        click.echo(f"warning: {finding.reason} {finding.subject}: {_fields(finding)}; {_advice(finding)}", err=True)


def _row(finding: Finding) -> tuple[object, ...]:
    name = finding.fields.get("brokerName", "")
    return name, finding.reason, finding.subject, _fields(finding), _advice(finding)


def _fields(finding: Finding) -> str:
    return " ".join(f"{name}={value}" for name, value in finding.fields.items() if name != "brokerName")


def _advice(finding: Finding) -> str:
    return _ADVICE.get(finding.reason, "")
