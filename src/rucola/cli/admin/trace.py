"""Message traces: sends and deliveries recorded by tracing clients."""

from __future__ import annotations

from typing import Any

import click

from rucola.admin import TRACE_TOPIC, MessageTraceView, TracedDelivery
from rucola.cli.admin.command import call_admin, command
from rucola.cli.output import optional, print_json, print_table, time_text, to_json, whole
from rucola.errors import ConfigError


@command("queryMsgTraceById")
@click.option("-i", "--msgId", "msg_id", required=True, help="Unique key of the message, assigned by its producer.")
@click.option(
    "-t", "--traceTopic", "trace_topic", default=TRACE_TOPIC, show_default=True, help="Topic with the traces."
)
def query_msg_trace_by_id(namesrv_addr: str, as_json: bool, msg_id: str, trace_topic: str) -> None:
    """Show the trace of a message: producers, consumers, times and durations.

    Only clients with tracing enabled record traces.

    \b
    Examples:
      rucola admin queryMsgTraceById -i C0A80107126755B4AAC2000100A30000
    """
    view = call_admin(namesrv_addr, lambda client: client.traces.query(msg_id, trace_topic))
    if not (view.sends or view.transactions or view.deliveries):
        raise ConfigError(f"topic {trace_topic} has no trace of {msg_id}")
    if as_json:
        print_json(_json(view))
    else:
        _print(view)
    if view.is_cut:
        click.echo("the trace may be incomplete", err=True)


def _json(view: MessageTraceView) -> dict[str, Any]:
    return {
        "sends": [{"clientHost": host} | to_json(pub) for host, pub in view.sends],
        "transactions": [{"clientHost": host} | to_json(end) for host, end in view.transactions],
        "deliveries": [
            {
                "clientHost": one.client_host,
                "group": one.group,
                "begin": to_json(one.begin),
                "end": to_json(one.end),
            }
            for one in view.deliveries
        ],
    }


def _print(view: MessageTraceView) -> None:
    if view.sends:
        print_table(
            ("#Type", "#ProducerGroup", whole("#ClientHost"), "#SendTime", "#CostTimes", "#Status"),
            [
                ("Pub", pub.group, host, time_text(pub.timestamp), f"{pub.cost_ms}ms", _status(pub.success))
                for host, pub in view.sends
            ],
        )
        click.echo()
    if view.transactions:
        print_table(
            ("#Type", "#ProducerGroup", whole("#ClientHost"), "#EndTime", "#State", optional("#FromCheck")),
            [
                ("EndTransaction", end.group, host, time_text(end.timestamp), end.transaction_state,
                 str(end.from_transaction_check).lower())
                for host, end in view.transactions
            ],
        )  # fmt: skip
        click.echo()
    if view.deliveries:
        print_table(
            ("#Type", "#ConsumerGroup", whole("#ClientHost"), "#ConsumerTime", "#CostTimes", "#Status"),
            map(_delivery_row, view.deliveries),
        )


def _delivery_row(one: TracedDelivery) -> tuple[str, ...]:
    begin_ms = one.begin.timestamp if one.begin is not None else 0
    if one.end is None:
        return "Sub", one.group, one.client_host, time_text(begin_ms), "", "not ended"
    at_ms = begin_ms or one.end.timestamp
    return "Sub", one.group, one.client_host, time_text(at_ms), f"{one.end.cost_ms}ms", _status(one.end.success)


def _status(success: bool) -> str:
    return "success" if success else "failed"
