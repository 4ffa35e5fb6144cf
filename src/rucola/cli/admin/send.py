"""Sending: single messages, and measurements of the response time of sends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import click

from rucola.admin import AdminClient, MessageQueue
from rucola.admin.commands.command import no_such_queue
from rucola.cli.admin.command import call_admin, command, interval_option, rounds, topic_option
from rucola.cli.output import print_json, print_table, whole
from rucola.client import Message, Producer
from rucola.client.producer.send_request import SendResult
from rucola.client.trace import MessageTrace
from rucola.errors import MQError

TOOLS_PRODUCER = "TOOLS_PRODUCER"

amount_option = click.option(
    "-a", "--amount", type=click.IntRange(1), default=100, show_default=True, help="Number of messages."
)
size_option = click.option(
    "-s", "--size", type=click.IntRange(1), default=128, show_default=True, help="Bytes per message."
)


@command("sendMessage")
@topic_option
@click.option("-p", "--body", required=True, help="Body, as UTF-8 text.")
@click.option("-k", "--key", "keys", help="Keys, separated by spaces.")
@click.option("-c", "--tags", help="Tag.")
@click.option("-b", "--broker", "broker_name", help="With -i: send to this broker.")
@click.option("-i", "--qid", "queue_id", type=click.IntRange(0), help="With -b: send to this queue.")
@click.option("-m", "--msgTraceEnable", "traced", type=bool, default=False, help="Record a trace, too (true|false).")
def send_message(
    namesrv_addr: str,
    as_json: bool,
    topic: str,
    body: str,
    keys: str | None,
    tags: str | None,
    broker_name: str | None,
    queue_id: int | None,
    traced: bool,
) -> None:
    """Send a message to a topic, or to one queue of it.

    \b
    Examples:
      rucola admin sendMessage -t Orders -p hello -k 4711 -c new
      rucola admin sendMessage -t Orders -p hello -b broker-a -i 0
    """
    if (broker_name is None) != (queue_id is None):
        raise click.UsageError("-b and -i belong together: a broker name and a queue id")
    queue = None
    if broker_name is not None and queue_id is not None:
        queue = MessageQueue(topic, broker_name, queue_id)

    async def run() -> SendResult:
        async with AsyncExitStack() as stack:
            trace = await stack.enter_async_context(MessageTrace(namesrv_addr)) if traced else None
            producer = await stack.enter_async_context(Producer(TOOLS_PRODUCER, namesrv_addr, trace=trace))
            queues = await producer.queues(topic)
            if queue is not None and queue not in queues:
                raise no_such_queue(queue, queues)
            return await producer.send(Message(topic, body.encode(), tags=tags, keys=keys), queue)

    result = asyncio.run(run())
    if as_json:
        print_json(send_json(result))
    else:
        print_sent([result])


def send_json(result: SendResult) -> dict[str, Any]:
    """Return the result of a send with Apache's names."""
    return {
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
        "sendStatus": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
    }


def print_sent(results: Iterable[SendResult]) -> None:
    rows = [(one.queue.broker_name, one.queue.queue_id, one.status.name, one.msg_id) for one in results]
    print_table(("#Broker Name", whole("#QID"), "#Send Result", whole("#MsgId")), rows)


async def _timed(producer: Producer, topic: str, queue: MessageQueue, size: int) -> tuple[MQError | None, float]:
    """Time the send of a message of `size` bytes: its error, if any, and milliseconds."""
    begin = time.perf_counter()
    failure = None
    try:
        await producer.send(Message(topic, b"a" * size), queue)
    except MQError as error:
        failure = error
    return failure, (time.perf_counter() - begin) * 1000


@command("checkMsgSendRT")
@topic_option
@amount_option
@size_option
def check_msg_send_rt(namesrv_addr: str, as_json: bool, topic: str, amount: int, size: int) -> None:
    """Send messages to the queues of a topic in turn, and show the response times.

    Messages are sent one at a time. The exit code is 1 if one of them failed.

    \b
    Examples:
      rucola admin checkMsgSendRT -t BenchmarkTest -a 20 -s 1024
    """

    async def run() -> list[tuple[MessageQueue, MQError | None, float]]:
        async with Producer(TOOLS_PRODUCER, namesrv_addr) as producer:
            queues = sorted(await producer.queues(topic))
            # One at a time: concurrent sends would measure the queueing of requests instead of the broker.
            chosen = [queues[number % len(queues)] for number in range(amount)]
            return [(queue, *await _timed(producer, topic, queue, size)) for queue in chosen]

    timed = asyncio.run(run())
    average = sum(took for _, _, took in timed) / len(timed)
    if as_json:
        sends = [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "sent": error is None, "rtMs": took}
            for queue, error, took in timed
        ]
        print_json({"avgRtMs": average, "sends": sends})
    else:
        rows = [(queue.broker_name, queue.queue_id, error is None, f"{took:.2f}") for queue, error, took in timed]
        print_table(("#Broker Name", whole("#QID"), "#Send Result", "#RT"), rows)
        click.echo(f"Avg RT: {average:.2f}")
    _end_with([error for _, error, _ in timed if error is not None])


@command("sendMsgStatus")
@click.option("-b", "--brokerName", "broker_name", required=True, help="Broker name.")
@click.option(
    "-s", "--messageSize", "size", type=click.IntRange(1), default=128, show_default=True, help="Bytes per message."
)
@click.option("-c", "--count", type=click.IntRange(1), default=50, show_default=True, help="Number of messages.")
def send_msg_status(namesrv_addr: str, as_json: bool, broker_name: str, size: int, count: int) -> None:
    """Send messages to the topic named after a broker, and show the response times.

    \b
    Examples:
      rucola admin sendMsgStatus -b broker-a -c 10
    """

    async def run() -> list[tuple[MQError | None, float]]:
        async with Producer(TOOLS_PRODUCER, namesrv_addr) as producer:
            queue = MessageQueue(broker_name, broker_name, 0)
            return [await _timed(producer, broker_name, queue, size) for _ in range(count)]

    timed = asyncio.run(run())
    if as_json:
        print_json([{"sent": error is None, "rtMs": took} for error, took in timed])
    else:
        for error, took in timed:
            click.echo(f"rt={took:.2f}ms, SendResult={'SEND_OK' if error is None else error}")
    _end_with([error for error, _ in timed if error is not None])


@command("clusterRT")
@amount_option
@size_option
@click.option("-c", "--cluster", help="Name of a cluster; by default all clusters.")
@click.option(
    "-p",
    "--printAsTlog",
    "as_log",
    type=bool,
    default=False,
    help="Print one line per broker, separated by | (true|false).",
)
@click.option(
    "-m",
    "--machineRoom",
    "room",
    default="noname",
    show_default=True,
    help="With -p: name of the machine room to print.",
)
@interval_option
def cluster_rt(
    namesrv_addr: str,
    as_json: bool,
    amount: int,
    size: int,
    cluster: str | None,
    as_log: bool,
    room: str,
    interval: float | None,
) -> None:
    """Measure the average response time of sends to every broker.

    Each broker gets -a messages in the topic that is named after it. The exit code is 1 if one of them failed.

    \b
    Examples:
      rucola admin clusterRT -a 10
      rucola admin clusterRT -c DefaultCluster -p true -m east -i 10
    """

    async def measure(client: AdminClient) -> list[tuple[str, str, float, int, int]]:
        info = await client.cluster.info()
        if cluster is not None:
            await client.cluster.masters(cluster)
        rows = []
        async with Producer(TOOLS_PRODUCER, namesrv_addr) as producer:
            for name, brokers in sorted(info.cluster_addr_table.items()):
                for broker in sorted(brokers) if cluster in (None, name) else ():
                    queue = MessageQueue(broker, broker, 0)
                    timed = [await _timed(producer, broker, queue, size) for _ in range(amount)]
                    # Failed sends are counted, but their time-outs do not distort the average.
                    good = [took for error, took in timed if error is None]
                    average = sum(good) / len(good) if good else 0.0
                    rows.append((name, broker, average, len(good), amount - len(good)))
        return rows

    for _ in rounds(interval):
        rows = call_admin(namesrv_addr, measure)
        if as_json:
            names = ("clusterName", "brokerName", "rtMs", "successCount", "failCount")
            print_json([dict(zip(names, row, strict=True)) for row in rows])
        elif as_log:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            for name, broker, average, _, _ in rows:
                click.echo(f"{now}|{room}|{name}|{broker}|{average:.0f}")
        else:
            columns = ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")
            print_table(columns, [(name, broker, f"{rt:.2f}", good, bad) for name, broker, rt, good, bad in rows])
    if any(row[4] for row in rows):
        sys.exit(1)


def _end_with(failures: list[MQError]) -> None:
    if failures:
        click.echo(f"{len(failures)} could not be sent: {failures[0]}", err=True)
        sys.exit(1)
