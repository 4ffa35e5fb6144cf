"""Messages: traces, and discarded transactions."""

from __future__ import annotations

from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import Option, Result, command, split
from rucola.admin.traces import TracedDelivery
from rucola.errors import ConfigError
from rucola.message.topics import TRACE_TOPIC
from rucola.presentation import Table, optional, time_text, to_json, whole


@command("resumeCheckHalfMessage", writes=True)
async def resume_check_half_message(
    client: AdminClient,
    msg_ids: Annotated[str, Option("-i --msgId", "One or more offsetMsgIds, separated by commas.")],
) -> Result:
    """Open transactions again that a broker discarded after too many checks.

    The ids belong to messages in TRANS_CHECK_MAX_TIME_TOPIC, which `printMsg -t TRANS_CHECK_MAX_TIME_TOPIC` lists.
    The broker asks the producers of each transaction again, with a new count of checks. mqadmin has no command for it.

    \b
    Examples:
      rucola admin resumeCheckHalfMessage -i 7F00000100002A9F0000000000004E20
    """
    ids = split(msg_ids)
    for one in ids:
        await client.messages.resume_check_half_message(one)
    return Result({"resumed": ids}, [f"{one} resumed" for one in ids])


@command("queryMsgTraceById")
async def query_msg_trace_by_id(
    client: AdminClient,
    msg_id: Annotated[str, Option("-i --msgId", "Unique key of the message, assigned by its producer.")],
    trace_topic: Annotated[str, Option("-t --traceTopic", "Topic with the traces.")] = TRACE_TOPIC,
) -> Result:
    """Show the trace of a message: producers, consumers, times and durations.

    Only clients with tracing enabled record traces.

    \b
    Examples:
      rucola admin queryMsgTraceById -i C0A80107126755B4AAC2000100A30000
    """
    view = await client.traces.query(msg_id, trace_topic)
    if not (view.sends or view.transactions or view.deliveries):
        raise ConfigError(f"topic {trace_topic} has no trace of {msg_id}")
    text: list[str | Table] = []
    if view.sends:
        columns = "#Type", "#ProducerGroup", whole("#ClientHost"), "#SendTime", "#CostTimes", "#Status"
        rows = [
            ("Pub", one.group, host, time_text(one.timestamp), f"{one.cost_ms}ms", _status(one.success))
            for host, one in view.sends
        ]
        text += [Table(columns, rows), ""]
    if view.transactions:
        of_ends = "#Type", "#ProducerGroup", whole("#ClientHost"), "#EndTime", "#State", optional("#FromCheck")
        rows = [
            ("EndTransaction", one.group, host, time_text(one.timestamp), one.transaction_state,
             str(one.from_transaction_check).lower())
            for host, one in view.transactions
        ]  # fmt: skip
        text += [Table(of_ends, rows), ""]
    if view.deliveries:
        columns = "#Type", "#ConsumerGroup", whole("#ClientHost"), "#ConsumerTime", "#CostTimes", "#Status"
        text.append(Table(columns, [_delivery_row(one) for one in view.deliveries]))
    value = {
        "sends": [{"clientHost": host} | to_json(one) for host, one in view.sends],
        "transactions": [{"clientHost": host} | to_json(one) for host, one in view.transactions],
        "deliveries": view.deliveries,
    }
    return Result(value, text, ["the trace may be incomplete"] if view.is_cut else [])


def _delivery_row(one: TracedDelivery) -> tuple[str, ...]:
    begin_ms = one.begin.timestamp if one.begin is not None else 0
    if one.end is None:
        return "Sub", one.group, one.client_host, time_text(begin_ms), "", "not ended"
    at_ms = begin_ms or one.end.timestamp
    return "Sub", one.group, one.client_host, time_text(at_ms), f"{one.end.cost_ms}ms", _status(one.end.success)


def _status(success: bool) -> str:
    return "success" if success else "failed"
