"""A consumer of RocketMQ 5 that receives by POP, request by request."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from support.peer import Peer


@dataclass(frozen=True)
class Received:
    """A message, and the handle as Apache's client makes it from the response."""

    body: bytes
    topic: str
    queue_id: int
    queue_offset: int
    attempt: int
    """1 for the first delivery."""
    handle: str
    properties: dict[str, str]

    @property
    def request_topic(self) -> str:
        return "%RETRY%g_T" if self.handle.split(" ")[4] == "1" else self.topic


async def pop(peer: Peer, **fields: Any) -> RemotingCommand:
    defaults: dict[str, Any] = {"consumer_group": "g", "topic": "T", "queue_id": -1, "max_msg_nums": 32}
    times = {"invisible_time": 60_000, "poll_time": 0, "born_time": 1, "init_mode": 0}
    return await peer.ask(RequestCode.POP_MESSAGE, PopMessageRequestHeader(**defaults | times | fields))


def received(answer: RemotingCommand) -> list[Received]:
    """What Apache's client makes of a response; empty if nothing was found."""
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    fields = answer.ext_fields
    starts = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in fields["startOffsetInfo"].split(";")}
    offsets = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in fields["msgOffsetInfo"].split(";")}
    counts = dict(part.rsplit(" ", 1) for part in fields.get("orderCountInfo", "").split(";") if part)
    found = []
    for message in decode_many(answer.body):
        handle = message.properties.get("POP_CK")
        if handle is None:
            key = "0", str(message.queue_id)
            assert str(message.queue_offset) in offsets[key].split(",")
            times = f"{fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']}"
            handle = f"{starts[key]} {times} 0 broker-a {message.queue_id} {message.queue_offset}"
        mark = handle.split(" ")[4]
        before = int(counts.get(f"{mark} qo{message.queue_id}%{message.queue_offset}", message.reconsume_times))
        found.append(
            Received(
                message.body,
                message.topic,
                message.queue_id,
                message.queue_offset,
                before + 1,
                handle,
                message.properties,
            )
        )
    return found


async def receive(peer: Peer, **fields: Any) -> list[Received]:
    return received(await pop(peer, **fields))


def ack_header(message: Received, group: str = "g") -> AckMessageRequestHeader:
    return AckMessageRequestHeader(
        consumer_group=group,
        topic=message.request_topic,
        queue_id=message.queue_id,
        extra_info=message.handle,
        offset=message.queue_offset,
    )


async def ack(peer: Peer, message: Received, group: str = "g") -> RemotingCommand:
    return await peer.ask(RequestCode.ACK_MESSAGE, ack_header(message, group))


async def ack_all(peer: Peer, messages: list[Received], group: str = "g") -> RemotingCommand:
    """One BATCH_ACK_MESSAGE, as Apache's client builds it."""
    acks: dict[tuple[str, ...], dict[str, Any]] = {}
    for message in messages:
        start, pop_time, invisible, revive, mark, _, queue_id, offset = message.handle.split(" ")
        entry = acks.setdefault(
            (start, pop_time, mark, queue_id),
            {
                "c": group,
                "t": "T",
                "r": mark,
                "so": int(start),
                "q": int(queue_id),
                "rq": int(revive),
                "pt": int(pop_time),
                "it": int(invisible),
                "b": 0,
            },
        )
        entry["b"] |= 1 << int(offset) - int(start)
    for entry in acks.values():
        bits = entry["b"]
        entry["b"] = base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()
    body = json.dumps({"brokerName": "broker-a", "acks": list(acks.values())}).encode()
    return await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)


async def change(peer: Peer, message: Received, invisible_ms: int, *, suspend: bool | None = None) -> RemotingCommand:
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group="g",
        topic=message.request_topic,
        queue_id=message.queue_id,
        extra_info=message.handle,
        offset=message.queue_offset,
        invisible_time=invisible_ms,
        suspend=suspend,
    )
    return await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


def changed(message: Received, answer: RemotingCommand) -> Received:
    """The message with the handle that a change of its invisible time returned."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    parts = message.handle.split(" ")
    parts[1:4] = [answer.ext_fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
    return Received(
        message.body,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.attempt,
        " ".join(parts),
        message.properties,
    )
