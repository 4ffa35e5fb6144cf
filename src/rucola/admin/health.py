"""HealthAdmin: what is wrong with a cluster, the most urgent first.

Besides the findings of `doctor` and `group_diagnosis`, which keep their reasons:

    reason               meaning                                                   fields
    NO_MASTER            no broker of this name accepts messages                   brokerName
    BROKER_SILENT        a registered broker does not answer                       brokerName address error
    NOT_CHECKED          a broker refuses a question, so that the rest is unknown  brokerName address error
    NOT_ACCEPTING        a master refuses messages                                 brokerName address why
    NOT_IN_SYNC          a slave lags, or a member of the in-sync set is missing   brokerName why
    NO_SLAVE_IN_SYNC     a SYNC_MASTER without a slave: sends are not acknowledged brokerName
    DISK_FULL            the disk of a broker is nearly full                       brokerName used
    CERTIFICATE_EXPIRES  the certificate of a broker has expired, or does soon     brokerName address days
    CLOCK_DIFFERS        the clock of a broker differs from this machine's         brokerName address seconds
    MAPPINGS_USED        a broker has nearly no descriptors or mappings left       brokerName used
    CLIENT_ID_SHARED     several clients of a group have one id                    group clientId addresses
    DEAD_LETTERS         messages that a group failed to consume                   group count
    NO_GROUP             messages of a topic that no group consumes: a notice      brokerName topic messages

Groups whose backlog is not consumed are diagnosed, up to MAX_DIAGNOSED of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Final

from rucola.admin.brokers import BrokerAdmin
from rucola.admin.cluster import ClusterAdmin
from rucola.admin.doctor import DoctorAdmin
from rucola.admin.group_diagnosis import DISK_RATIO, FULL_COUNT, MOST, GroupDiagnosis
from rucola.admin.groups import GroupAdmin
from rucola.admin.requests import gather_to_completion
from rucola.admin.roles import MAX_LAG, RoleAdmin
from rucola.domain.diagnosis import Finding
from rucola.domain.pending import Backlog
from rucola.domain.role import MASTER_ID
from rucola.errors import BrokerError, MQError
from rucola.protocol.codes import ResponseCode

MAX_DIAGNOSED: Final = 10
MAX_GROUPS: Final = 200
"""Groups of a broker whose clients are looked at."""
EXPIRY_DAYS: Final = 14
CLOCK_S: Final = 2.0
MAPPINGS_RATIO: Final = 0.9
DAY_MS: Final = 86_400_000
NOTICES: Final = frozenset({"NO_GROUP", "NOT_DIAGNOSED", "TOPIC_MISSING", "NO_RETRY_QUEUE", "SLOW"})
"""Reasons of findings that may be meant."""

URGENCY: Final = (
    "NO_MASTER", "BROKER_SILENT", "NOT_CHECKED", "NOT_ACCEPTING", "NO_SLAVE_IN_SYNC", "NOT_IN_SYNC", "DISK_FULL",
    "CERTIFICATE_EXPIRES", "CONSUME_DISABLED", "TOPIC_NOT_READABLE", "NO_CLIENT", "QUEUE_STUCK", "POP_BLOCKED",
    "CLIENT_SILENT", "CLIENT_ID_SHARED", "SUBSCRIPTIONS_DIFFER", "NOT_SUBSCRIBED", "QUEUE_UNASSIGNED", "CLIENT_FULL",
    "CONSUME_FAILS", "ONE_QUEUE", "TOO_FEW_QUEUES", "CLOCK_DIFFERS", "MAPPINGS_USED", "DEAD_LETTERS", "QUEUE_NOT_READ",
    "FEWER_READ_QUEUES", "FEWER_RETRY_QUEUES", "TRANSACTIONS_DISCARDED", *sorted(NOTICES),
)  # fmt: skip
"""Reasons, the most urgent first."""


class HealthAdmin:
    def __init__(
        self,
        cluster: ClusterAdmin,
        brokers: BrokerAdmin,
        groups: GroupAdmin,
        roles: RoleAdmin,
        doctor: DoctorAdmin,
        diagnosis: GroupDiagnosis,
    ) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._groups = groups
        self._roles = roles
        self._doctor = doctor
        self._diagnosis = diagnosis

    async def check(self) -> list[Finding]:
        """Return the findings about a cluster, in the order of URGENCY. Brokers that do not answer are findings."""
        found: list[Finding] = []
        stuck: Counter[str] = Counter()
        dead: Counter[str] = Counter()
        for name, data in sorted((await self._cluster.info()).broker_addr_table.items()):
            if (address := data.broker_addrs.get(MASTER_ID)) is None:
                found.append(Finding("NO_MASTER", name, {"brokerName": name}))
            else:
                found += await self._answered(name, address, self._master(name, address, stuck, dead))
            for broker_id, address in data.broker_addrs.items():
                if broker_id != MASTER_ID:
                    found += await self._answered(name, address, self._machine(name, address))
        found += [Finding("DEAD_LETTERS", group, {"group": group, "count": count}) for group, count in dead.items()]
        for group, _ in stuck.most_common(MAX_DIAGNOSED):
            for finding in await self._diagnosis.check(group):
                if finding.reason not in ("BROKER_SILENT", "DISK_FULL"):  # found above
                    finding.fields = {"group": group, **finding.fields}
                    found.append(finding)
        unique = {(one.reason, one.subject, one.fields.get("group", "")): one for one in found}
        places: Mapping[str, int] = {reason: place for place, reason in enumerate(URGENCY)}
        return sorted(unique.values(), key=lambda one: places.get(one.reason, len(places)))

    async def _answered(self, name: str, address: str, check: Awaitable[list[Finding]]) -> list[Finding]:
        try:
            return await check
        except BrokerError as error:
            is_apache = error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            fields = {"brokerName": name, "address": address, "error": str(error)}
            return [Finding("NOT_DIAGNOSED" if is_apache else "NOT_CHECKED", address, fields)]
        except MQError as error:
            fields = {"brokerName": name, "address": address, "error": str(error)}
            return [Finding("BROKER_SILENT", address, fields)]

    async def _machine(self, name: str, address: str) -> list[Finding]:
        """Check what a slave has as well: disk, clock, certificate, descriptors."""
        disk = float((await self._brokers.runtime_stats(address)).get("commitLogDiskRatio", 0))
        full = [Finding("DISK_FULL", address, {"brokerName": name, "used": f"{disk:.0%}"})]
        return (full if disk >= DISK_RATIO else []) + await self._answered(name, address, self._own(name, address))

    async def _own(self, name: str, address: str) -> list[Finding]:
        """Check what a broker of Rucola alone says of itself."""
        found: list[Finding] = []
        at = {"brokerName": name, "address": address}
        before_ms = time.time() * 1000
        own = await self._doctor.diagnosis(address)
        now_ms = time.time() * 1000
        if own.clock_ms:
            early_ms, late_ms = before_ms - own.clock_ms, own.clock_ms - now_ms
            if (seconds := max(early_ms, late_ms) / 1000) > CLOCK_S:
                found.append(Finding("CLOCK_DIFFERS", address, at | {"seconds": round(seconds, 1)}))
        days = (own.certificate_expires_ms - now_ms) / DAY_MS
        if own.certificate_expires_ms and days < EXPIRY_DAYS:
            found.append(Finding("CERTIFICATE_EXPIRES", address, at | {"days": round(days, 1)}))
        if own.mappings_ratio >= MAPPINGS_RATIO:
            fields = {"brokerName": name, "used": f"{own.mappings_ratio:.0%}"}
            found.append(Finding("MAPPINGS_USED", address, fields))
        return found

    async def _master(self, name: str, address: str, stuck: Counter[str], dead: Counter[str]) -> list[Finding]:
        found = await self._machine(name, address)
        found += await self._replication(name, address)
        pending = await self._brokers.pending(address)
        dead.update(pending.dead_letters)
        for backlog in pending.backlogs:
            if not backlog.clients or not backlog.consume_tps:
                stuck[backlog.group] += backlog.messages
            elif _is_skewed(backlog):
                queue = {"topic": backlog.topic, "brokerName": name, "queueId": backlog.largest_queue_id}
                counts = {"backlog": backlog.largest_queue, "total": backlog.messages, "group": backlog.group}
                subject = f"{backlog.topic} {name}:{backlog.largest_queue_id}"
                found.append(Finding("ONE_QUEUE", subject, queue | counts))
        for topic, messages in pending.unread.items():
            found.append(
                Finding("NO_GROUP", f"{topic} {name}", {"brokerName": name, "topic": topic, "messages": messages})
            )
        found += await self._doctor.check_broker(address, name)
        groups = list(await self._groups.configs(address))[:MAX_GROUPS]
        return found + [
            Finding(
                "CLIENT_ID_SHARED", client_id, {"group": group, "clientId": client_id, "addresses": list(addresses)}
            )
            for group, connection in zip(
                groups,
                await gather_to_completion(self._groups.find_consumer_connection(group, address) for group in groups),
                strict=True,
            )
            if connection is not None
            for client_id, addresses in connection.shared_client_ids.items()
        ]

    async def _replication(self, name: str, address: str) -> list[Finding]:
        status = await self._roles.status(address)
        at = {"brokerName": name, "address": address}
        if not status.is_accepting:
            return [Finding("NOT_ACCEPTING", address, at | {"why": status.reason})]
        found = [
            Finding("NOT_IN_SYNC", slave.address, {"brokerName": name, "why": f"it lags by {slave.lag_bytes} bytes"})
            for slave in status.slaves
            if slave.in_sync is False or slave.lag_bytes > MAX_LAG
        ]
        known = {slave.broker_id for slave in status.slaves}
        for slave_id in sorted({*status.slave_ids} - known):
            found.append(
                Finding("NOT_IN_SYNC", f"{name}:{slave_id}", {"brokerName": name, "why": "it is not connected"})
            )
        if status.role == "SYNC_MASTER" and not status.slaves:
            found.append(Finding("NO_SLAVE_IN_SYNC", name, {"brokerName": name}))
        if status.election is not None and status.election.is_etcd_away:
            found.append(Finding("NOT_IN_SYNC", address, {"brokerName": name, "why": "etcd does not answer"}))
        return found


def _is_skewed(backlog: Backlog) -> bool:
    """Return whether one of several queues has most of a backlog."""
    return backlog.messages > FULL_COUNT and backlog.queues > 1 and backlog.largest_queue >= MOST * backlog.messages
