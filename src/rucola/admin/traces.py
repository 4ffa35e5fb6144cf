"""TraceAdmin: message traces, which clients write to a trace topic (format: `rucola.protocol.trace`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.admin.messages import MessageAdmin
from rucola.message import MessageExt
from rucola.message.topics import TRACE_TOPIC
from rucola.protocol.trace import EndTransaction, Pub, SubAfter, SubBefore, decode

MAX_TRACE_MESSAGES = 1000
"""The maximum number of trace messages read for one id."""


@dataclass(slots=True)
class TracedDelivery:
    """One delivery to a consumer."""

    client_host: str
    group: str
    # None if the client did not trace it, or the trace message is missing.
    begin: SubBefore | None
    end: SubAfter | None


@dataclass(slots=True)
class MessageTraceView:
    """The trace of a message, oldest first."""

    # With the host of the client that traced it, also for transactions.
    sends: list[tuple[str, Pub]] = field(default_factory=list)
    transactions: list[tuple[str, EndTransaction]] = field(default_factory=list)
    deliveries: list[TracedDelivery] = field(default_factory=list)
    # Whether there may be more trace messages than MAX_TRACE_MESSAGES.
    is_cut: bool = False


class TraceAdmin:
    def __init__(self, messages: MessageAdmin) -> None:
        self._messages = messages

    async def query(self, msg_id: str, trace_topic: str = TRACE_TOPIC) -> MessageTraceView:
        """Return the trace of the message with a unique key. TopicNotFound if no client has ever traced."""
        result = await self._messages.query_by_key(trace_topic, msg_id, MAX_TRACE_MESSAGES)
        for error in result.failures.values():
            raise error
        view = MessageTraceView(is_cut=result.is_cut)
        deliveries: dict[str, TracedDelivery] = {}
        for message in reversed(result.messages):
            _add_traces(message, msg_id, view, deliveries)
        view.deliveries = sorted(deliveries.values(), key=_begin_ms)
        return view


def _add_traces(
    message: MessageExt, msg_id: str, view: MessageTraceView, deliveries: dict[str, TracedDelivery]
) -> None:
    """Add one trace message's entries about `msg_id`. A delivery's two entries share a request id."""
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
