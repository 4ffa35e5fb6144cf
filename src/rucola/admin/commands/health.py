"""Health of a cluster: what is wrong with it, the most urgent first; and how much of its capacity is used."""

from __future__ import annotations

from typing import Final

from rucola.admin.capacity import Usage
from rucola.admin.client import AdminClient
from rucola.admin.commands.command import ALL_MASTERS, Masters, Result, command
from rucola.admin.commands.diagnosis import REMEDIES
from rucola.admin.commands.doctor import ADVICE
from rucola.admin.health import NOTICES
from rucola.domain.diagnosis import Finding
from rucola.errors import BrokerError
from rucola.presentation import Table, short_number, size_text, to_json, whole

TEXTS: Final = {
    "NO_MASTER": "no master is registered: start it, or `rucola admin promote` a slave",
    "BROKER_SILENT": "the broker does not answer: {error}",
    "NOT_CHECKED": "the broker refuses a question: {error}",
    "NOT_ACCEPTING": "the master accepts no messages: {why}",
    "NO_SLAVE_IN_SYNC": "no slave follows the SYNC_MASTER: sends are answered SLAVE_NOT_AVAILABLE",
    "NOT_IN_SYNC": "{why}: `rucola admin haStatus`",
    "DISK_FULL": "the disk is {used} full: at diskSpaceWarningLevelRatio messages are refused",
    "CERTIFICATE_EXPIRES": "the certificate expires in {days} days (below 0: it has): renew it, and send SIGHUP",
    "CLOCK_DIFFERS": "its clock differs by {seconds} s from this machine's: delays and retention follow it",
    "MAPPINGS_USED": "{used} of its descriptors or mappings are used: LimitNOFILE, vm.max_map_count",
    "DEAD_LETTERS": "{count} messages were given up: printDlq, then redriveDlq",
    "NO_GROUP": "{messages} messages, and no group consumes the topic",
}  # fmt: skip
"""By the reason of a finding, with its fields; others have theirs in REMEDIES or ADVICE."""


def _text(finding: Finding) -> str:
    if finding.reason in TEXTS:
        return TEXTS[finding.reason].format(**finding.fields)
    if finding.reason in REMEDIES:
        return REMEDIES[finding.reason].text.format(**finding.fields)
    return ADVICE.get(finding.reason, "")


@command("health", is_repeatable=True)
async def health(client: AdminClient) -> Result:
    """Say what is wrong with a cluster, the most urgent first.

    Looks at masters, slaves, replication, disks, certificates, clocks, stuck groups, queues that have most of a
    backlog, client ids, dead letters, and messages that nobody can consume. The exit code is 1 if anything is found,
    except notices of what may be meant, such as a topic without a group.

    \b
    Examples:
      rucola admin health
      rucola admin health --json
    """
    found = await client.health.check()
    is_failure = any(one.reason not in NOTICES for one in found)
    rows, values = [], []
    for one in found:
        kind = "notice" if one.reason in NOTICES else "problem"
        rows.append((kind, one.reason, one.fields.get("group") or one.subject, _text(one)))
        values.append(to_json(one) | {"kind": kind, "explanation": _text(one)})
    table = Table((whole("#Kind"), whole("#Reason"), whole("#Subject"), whole("#Explanation")), rows)
    return Result({"findings": values}, [table if rows else "nothing is wrong"], is_failure=is_failure)


NEARLY: Final = 0.8
"""Share of a resource from which on it is named."""


@command("capacity", is_repeatable=True)
async def capacity(client: AdminClient, target: Masters = ALL_MASTERS) -> Result:
    """Compare the load of a broker (-b), of the masters of a cluster (-c), or of all masters with what they can bear.

    Estimates with the figures of docs/sizing.md: processor time, disk and retention at the rates of the last ten
    minutes, topics, groups, descriptors, and the recovery after a crash. The exit code is 1 if more than 80 % of
    anything is used, or a broker does not say, such as one of Apache's.

    \b
    Examples:
      rucola admin capacity
      rucola admin capacity -b localhost:10911 --json
    """
    unknown: list[str] = []

    async def usages_of(address: str) -> list[Usage]:
        try:
            return await client.capacity.of_broker(address)
        except BrokerError as error:
            unknown.append(f"the capacity of {address} is not known: {error}")
            return []

    found = await target.ask(client, usages_of)
    rows, values = [], []
    for address, usages in found.items():
        for one in usages:
            figures = _amount(one.used, one.unit), _amount(one.limit, one.unit), f"{one.share:.0%}"
            rows.append((address, one.resource, *figures, "nearly used up" if one.share > NEARLY else ""))
            values.append(to_json(one) | {"brokerAddr": address, "share": round(one.share, 4)})
    columns = whole("#Broker Addr"), "#Resource", "#Used", "#Limit", "#Share", "#Note"
    is_failure = bool(unknown) or any(one.share > NEARLY for usages in found.values() for one in usages)
    return Result(values, [Table(columns, rows)], notes=unknown, is_failure=is_failure)


def _amount(value: float, unit: str) -> str:
    return size_text(value) if unit == "bytes" else f"{short_number(value)} {unit}".rstrip()
