"""Inspection: the connected clients, and the state inside one of them, for operators.

Corresponds to parts of `AdminBrokerProcessor`, `ClientManageProcessor` and `Broker2Client` of Apache RocketMQ 4.9.8.
Deliberate differences: all clients of a group get the status request at once, and a missing message is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from rucola import refusals
from rucola.access import Caller, Check, Refused, Resource
from rucola.broker.client_calls import ConsumerCalls
from rucola.broker.client_registry import ClientChannel, Member
from rucola.broker.state import BrokerState
from rucola.domain.client import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from rucola.domain.queue import MessageQueue
from rucola.message.ids import parse_offset_msg_id
from rucola.message.record import decode
from rucola.slices import sliced

MAX_PRODUCERS = 32_768
"""Maximum in one response; 4 MB."""
MEMBERS_PER_ITERATION = 64


class InspectionService:
    def __init__(self, state: BrokerState, calls: ConsumerCalls, check_read: Check | None = None) -> None:
        self._check_read = check_read
        self._state = state
        self._calls = calls

    def consumer_connections(self, name: str) -> ConsumerConnection:
        """Return a consumer group's members and subscriptions. Raises Refused without members."""
        clients = self._state.clients
        groups = [found[name] for found in (clients.consumers, clients.receivers) if name in found]
        if not groups:
            raise Refused(refusals.GROUP_OFFLINE, group=name)
        group = groups[0]
        return ConsumerConnection(
            connection_set=[one for each in groups for one in _connections(each.members)],
            consume_from_where=group.consume_from_where,
            consume_type=group.consume_type,
            message_model=group.message_model,
            subscription_table={**groups[-1].subscriptions, **group.subscriptions},
        )

    def producer_connections(self, name: str) -> ProducerConnection:
        """Return the members of a producer group. Raises Refused without members."""
        members = self._state.clients.producers.get(name)
        if members is None:
            raise Refused(refusals.PRODUCER_GROUP_NOT_FOUND, group=name)
        return ProducerConnection(connection_set=_connections(members))

    @sliced
    def all_producers(self) -> Generator[None, None, ProducerTableInfo]:
        """Return the members of all producer groups. Raises Refused if they are too many for one response."""
        count = sum(map(len, self._state.clients.producers.values()))
        if count > MAX_PRODUCERS:
            raise Refused(refusals.TOO_MANY_PRODUCERS, count=count, limit=MAX_PRODUCERS)
        data: dict[str, list[ProducerInfo]] = {}
        for group, members in list(self._state.clients.producers.items()):
            data[group] = []
            for channel, member in list(members.items()):
                producer = ProducerInfo(
                    client_id=member.client_id,
                    language=member.language,
                    last_update_timestamp=member.last_heartbeat_ms,
                    remote_ip=channel.peer,
                    version=member.version,
                )
                data[group].append(producer)
                yield
        return ProducerTableInfo(data=data)

    def consumer(self, group: str, client_id: str) -> ClientChannel:
        """Return the channel of a member of a consumer group. Raises Refused if it is not connected, or by gRPC."""
        clients = self._state.clients
        known = clients.consumers.get(group)
        for channel, member in known.members.items() if known else ():
            if member.client_id == client_id:
                return channel
        if group in clients.receivers and client_id in clients.receivers[group].channels:
            raise Refused(refusals.CONSUMER_BY_GRPC, group=group, client_id=client_id)
        raise Refused(refusals.CONSUMER_NOT_FOUND, group=group, client_id=client_id)

    async def record_of(self, caller: Caller, offset_msg_id: str) -> bytes:
        """Return the record of an offsetMsgId. Raises InvalidMessage if it is malformed, or Refused."""
        _, physical_offset = parse_offset_msg_id(offset_msg_id)
        record = await self._state.tiered.record_at(physical_offset)
        if record is None:
            raise Refused(refusals.MESSAGE_NOT_FOUND, physical_offset=physical_offset)
        if self._check_read is not None:
            self._check_read(caller, Resource(decode(record, decompress=False).topic))
        return bytes(record)

    async def consumer_status(
        self, name: str, topic: str, only: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets on a topic of those members of a group that respond, by client id, or of `only` one.

        Raises Refused without members.
        """
        group = self._state.clients.consumers.get(name)
        if group is None:
            raise Refused(refusals.NO_MEMBER, group=name)
        members = {
            channel: member.client_id
            for channel, member in group.members.items()
            if not only or only == member.client_id
        }
        async with asyncio.TaskGroup() as asking:
            tasks = []
            for number, (channel, client_id) in enumerate(members.items()):
                if number % MEMBERS_PER_ITERATION == 0:
                    await asyncio.sleep(0)  # a group may have thousands
                call = self._calls.consumer_status(channel, client_id, topic, name)
                tasks.append(asking.create_task(call))
        statuses = [task.result() for task in tasks]
        known = zip(members.values(), statuses, strict=True)
        return {client_id: offsets for client_id, offsets in known if offsets is not None}


def _connections(members: dict[ClientChannel, Member]) -> list[ClientConnection]:
    return [
        ClientConnection(
            client_addr=channel.peer, client_id=member.client_id, language=member.language, version=member.version
        )
        for channel, member in members.items()
    ]
