"""Diagnosis: why a consumer group is behind, and the command that repairs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rucola.admin.client import AdminClient
from rucola.admin.commands.arguments import command_line, parse
from rucola.admin.commands.command import CATALOGUE, GroupName, Result, command
from rucola.domain.diagnosis import Finding
from rucola.presentation import Table, to_json, whole


class Remedy(NamedTuple):
    """What a finding means and what to do: `text` and `arguments` are formats of the finding's fields and `group`."""

    text: str
    command: str = ""
    arguments: Mapping[str, str] = {}


REMEDIES: Final = {
    "BROKER_SILENT": Remedy("broker {brokerName} does not answer, and its queues are not consumed: {error}"),
    "CONSUME_DISABLED": Remedy(
        "broker {brokerName} gives the group no messages: consuming is switched off there; switch it on",
        "updateSubGroup",
        {
            "group_name": "{group}", "address": "{address}", "consume_enable": "true",
            "retry_queue_nums": "{retryQueueNums}", "retry_max_times": "{retryMaxTimes}",
        },
    ),
    "TOPIC_NOT_READABLE": Remedy(
        "topic {topic} permits no reads on {brokerName}: permit them",
        "updateTopicPerm", {"topic": "{topic}", "address": "{address}", "perm": "6"},
    ),
    "NO_CLIENT": Remedy("{backlog} messages wait and no client of the group is connected: start one"),
    "CLIENT_ID_SHARED": Remedy(
        "several clients have the id {clientId}, so that some queues are consumed twice and others by nobody: give "
        "each its own instance name"
    ),
    "CLIENT_SILENT": Remedy(
        "client {clientId} is connected and does not answer: its process hangs or is overloaded ({error})",
        "consumerStatus", {"group": "{group}", "client_id": "{clientId}", "jstack": "true"},
    ),
    "SUBSCRIPTIONS_DIFFER": Remedy(
        "the clients subscribe differently, and each replaces the subscription of the others: deploy one version",
        "consumerStatus", {"group": "{group}"},
    ),
    "NOT_SUBSCRIBED": Remedy(
        "no client subscribes to topic {topic}, on which {backlog} messages wait: start one that does, or skip them",
        "skipAccumulatedMessage", {"group": "{group}", "topic": "{topic}"},
    ),
    "TOO_FEW_QUEUES": Remedy(
        "{clients} clients share {queues} queues of topic {topic}, so that some have none: add queues",
        "updateTopic", {"topic": "{topic}", "read_queue_nums": "{clients}", "write_queue_nums": "{clients}"},
    ),
    "QUEUE_UNASSIGNED": Remedy(
        "no client consumes queue {queueId} of topic {topic} on {brokerName}, where {backlog} messages wait: a client "
        "that joined or left may not have rebalanced; if it stays so, restart the clients"
    ),
    "QUEUE_STUCK": Remedy(
        "client {clientId} has {cached} messages of queue {queueId} of topic {topic} on {brokerName} and has finished "
        "none lately: look at the stack of its listener",
        "consumerStatus", {"group": "{group}", "client_id": "{clientId}", "jstack": "true"},
    ),
    "CLIENT_FULL": Remedy(
        "client {clientId} has fetched {cached} messages of queue {queueId} of topic {topic} on {brokerName} and waits "
        "for its listener: give it more threads, or make the listener faster",
        "consumerStatus", {"group": "{group}", "client_id": "{clientId}", "jstack": "true"},
    ),
    "CONSUME_FAILS": Remedy(
        "the listener of client {clientId} fails on topic {topic} {failedTps} times a second: its log says why; "
        "failed messages are retried, and become dead letters",
        "printDlq", {"group": "{group}"},
    ),
    "ONE_QUEUE": Remedy(
        "queue {queueId} of topic {topic} on {brokerName} has {backlog} of {total} waiting messages: its messages "
        "share a key, or its client is slower than the others",
        "consumerProgress", {"group": "{group}"},
    ),
    "POP_BLOCKED": Remedy(
        "nobody receives the next messages of queue {queueId} of topic {topic} on {brokerName}: {why}",
        "popStatus", {"group": "{group}", "topic": "{topic}"},
    ),
    "DISK_FULL": Remedy(
        "the disk of {brokerName} is {used} full: reads of old messages are slow, and sends may be refused",
    ),
    "SLOW": Remedy(
        "nothing hinders the group: it consumes {consumeTps} messages a second, {consumeRt} ms each, and {backlog} "
        "wait; add clients or threads"
    ),
}  # fmt: skip
"""By the reason of a finding."""


def repair(finding: Finding, group: str) -> tuple[str, dict[str, Any]] | None:
    """Return the command that repairs or explains a finding, with its arguments as texts."""
    remedy = REMEDIES[finding.reason]
    if not remedy.command:
        return None
    fields = finding.fields | {"group": group}
    return remedy.command, {name: text.format(**fields) for name, text in remedy.arguments.items()}


def _repair_line(finding: Finding, group: str) -> str:
    found = repair(finding, group)
    if found is None:
        return ""
    name, given = found
    if name == "updateTopic":
        given["cluster"] = "CLUSTER"  # the operator chooses where
    return command_line(CATALOGUE[name], parse(CATALOGUE[name], given))


@command("diagnoseGroup", is_repeatable=True)
async def diagnose_group(client: AdminClient, group: GroupName) -> Result:
    """Say why a consumer group is behind, with the command that repairs it.

    Asks each broker, and up to 20 clients of the group. The exit code is 1 if anything is found.

    \b
    Examples:
      rucola admin diagnoseGroup -g billing
      rucola admin diagnoseGroup -g billing --json
    """
    found = await client.diagnosis.check(group)
    if not found:
        await client.groups.check_exists(group)
    rows = [(one.reason, REMEDIES[one.reason].text.format(**one.fields), _repair_line(one, group)) for one in found]
    value = [
        to_json(one) | {"explanation": text, "repair": line} for one, (_, text, line) in zip(found, rows, strict=True)
    ]
    table = Table((whole("#Reason"), whole("#Explanation"), whole("#Repair")), rows)
    return Result({"findings": value}, [table if rows else "the group is not behind"], is_failure=bool(found))
