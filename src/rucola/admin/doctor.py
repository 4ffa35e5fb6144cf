"""DoctorAdmin: checks of a cluster for states in which messages wait and are not consumed.

Each check examines one master and returns findings, with a reason for programs:

    reason                  meaning                                                 fields
    QUEUE_NOT_READ          messages in a queue whose id is not below               brokerName topic queueId messages
                            readQueueNums: no route shows it                        readQueueNums
    TOPIC_MISSING           messages of a topic that the broker does not have       brokerName topic messages
    FEWER_READ_QUEUES       a topic accepts messages in queues without readers      brokerName topic readQueueNums
                                                                                    writeQueueNums
    FEWER_RETRY_QUEUES      a retry topic has fewer queues than its group's         brokerName group retryQueueNums
                            retryQueueNums; Apache's broker hides retries there     readQueueNums
    NO_RETRY_QUEUE          a group's retryQueueNums is 0; Apache's broker drops    brokerName group
                            its retries, Rucola's uses 1
    TRANSACTIONS_DISCARDED  transactions that no producer ended, which              brokerName messages
                            `resumeCheckHalfMessage` opens again
    NOT_DIAGNOSED           the broker has no diagnosis (the first two findings);   brokerName error
                            Apache's does not support it
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.offsets import OffsetAdmin
from rucola.admin.requests import AdminRequests, masters_of
from rucola.admin.topics import TopicAdmin
from rucola.domain.diagnosis import Diagnosis, Finding
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError
from rucola.message.topics import TRANS_CHECK_MAX_TIME_TOPIC, is_system_topic, retry_topic
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode


class DoctorAdmin:
    def __init__(
        self,
        requests: AdminRequests,
        cluster: ClusterAdmin,
        topics: TopicAdmin,
        groups: GroupAdmin,
        offsets: OffsetAdmin,
    ) -> None:
        self._requests = requests
        self._cluster = cluster
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    async def check(self) -> list[Finding]:
        """Return the findings about all registered masters."""
        brokers = masters_of((await self._cluster.info()).broker_addr_table.values())
        return [finding for name in sorted(brokers) for finding in await self.check_broker(brokers[name], name)]

    async def check_broker(self, address: str, broker_name: str) -> list[Finding]:
        found = [finding for check in self.CHECKS for finding in await check(self, address)]
        for finding in found:
            finding.fields = {"brokerName": broker_name, **finding.fields}
        return found

    async def check_topic(self, address: str, topic: str) -> list[Finding]:
        """Return the findings about one topic of the broker at `address`."""
        found = [*await self._own_findings(address), *await self._read_queues(address)]
        return [finding for finding in found if finding.fields.get("topic") == topic]

    async def diagnosis(self, address: str) -> Diagnosis:
        """Return what a broker finds in its state. BrokerError if it is Apache's."""
        return decode_body(Diagnosis, (await self._requests.invoke(address, RequestCode.GET_DIAGNOSIS)).body)

    async def _own_findings(self, address: str) -> list[Finding]:
        try:
            return (await self.diagnosis(address)).findings
        except BrokerError as error:
            return [Finding("NOT_DIAGNOSED", address, {"error": str(error)})]

    async def _read_queues(self, address: str) -> list[Finding]:
        found = []
        for name, topic in sorted((await self._topics.configs(address)).items()):
            numbers = {"readQueueNums": topic.read_queue_nums, "writeQueueNums": topic.write_queue_nums}
            if topic.read_queue_nums < topic.write_queue_nums and not is_system_topic(name):
                found.append(Finding("FEWER_READ_QUEUES", name, {"topic": name, **numbers}))
        return found

    async def _retry_queues(self, address: str) -> list[Finding]:
        topics, found = await self._topics.configs(address), list[Finding]()
        for name, group in sorted((await self._groups.configs(address)).items()):
            topic = topics.get(retry_topic(name))
            if group.retry_queue_nums == 0:
                found.append(Finding("NO_RETRY_QUEUE", name, {"group": name}))
            elif topic is not None and topic.read_queue_nums < group.retry_queue_nums:
                numbers = {"retryQueueNums": group.retry_queue_nums, "readQueueNums": topic.read_queue_nums}
                found.append(Finding("FEWER_RETRY_QUEUES", name, {"group": name, **numbers}))
        return found

    async def _discarded_transactions(self, address: str) -> list[Finding]:
        if TRANS_CHECK_MAX_TIME_TOPIC not in await self._topics.configs(address):
            return []
        begin, end = await self._offsets.ends(address, MessageQueue(TRANS_CHECK_MAX_TIME_TOPIC, "", 0))
        finding = Finding("TRANSACTIONS_DISCARDED", TRANS_CHECK_MAX_TIME_TOPIC, {"messages": end - begin})
        return [finding] if begin < end else []

    CHECKS: ClassVar[tuple[Callable[[DoctorAdmin, str], Awaitable[list[Finding]]], ...]] = (
        _own_findings,
        _read_queues,
        _retry_queues,
        _discarded_transactions,
    )
