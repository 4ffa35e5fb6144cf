"""TraceAdmin: what clients have written down of a message's way (see `rucola.protocol.trace`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.admin.messages import MessageAdmin
from rucola.message import MessageExt
from rucola.message.topics import TRACE_TOPIC
from rucola.protocol.trace import EndTransaction, Pub, SubAfter, SubBefore, decode

MAX_TRACE_MESSAGES = 1000
"""Most messages of the trace topic that are looked at for one id."""


@dataclass(slots=True)
class TracedDelivery:
    """A consumer had the message. `end` is None where it began and nobody told how it ended."""

    client_host: str
    group: str
    begin: SubBefore | None
    end: SubAfter | None


@dataclass(slots=True)
class MessageTraceView:
    """A message's way as its clients tell it, oldest first: sends and transactions with the host of the client."""

    sends: list[tuple[str, Pub]] = field(default_factory=list)
    transactions: list[tuple[str, EndTransaction]] = field(default_factory=list)
    deliveries: list[TracedDelivery] = field(default_factory=list)
    is_cut: bool = False


class TraceAdmin(MessageAdmin):
    """Part of AdminClient."""

    async def query_message_trace(self, msg_id: str, trace_topic: str = TRACE_TOPIC) -> MessageTraceView:
        """The trace of the message with this unique key. TopicNotFound where nobody has ever traced."""
        found = await self.query_message_by_key(trace_topic, msg_id, MAX_TRACE_MESSAGES)
        for error in found.failures.values():
            raise error
        view = MessageTraceView(is_cut=found.is_cut)
        deliveries: dict[str, TracedDelivery] = {}
        for message in reversed(found.messages):
            _read(message, msg_id, view, deliveries)
        view.deliveries = sorted(deliveries.values(), key=_begin_ms)
        return view


def _read(message: MessageExt, msg_id: str, view: MessageTraceView, deliveries: dict[str, TracedDelivery]) -> None:
    host = message.born_host.rpartition(":")[0]
    for trace in decode(message.body.decode("utf-8", "replace")):
        if trace.msg_id != msg_id:
            continue
        match trace:
            case Pub():
                view.sends.append((host, trace))
            case EndTransaction():
                view.transactions.append((host, trace))
            case SubBefore():
                deliveries.setdefault(trace.request_id, TracedDelivery(host, trace.group, None, None)).begin = trace
            case SubAfter():
                deliveries.setdefault(trace.request_id, TracedDelivery(host, trace.group, None, None)).end = trace


def _begin_ms(delivery: TracedDelivery) -> int:
    if delivery.begin is not None:
        return delivery.begin.timestamp
    assert delivery.end is not None
    return delivery.end.timestamp - delivery.end.cost_ms
