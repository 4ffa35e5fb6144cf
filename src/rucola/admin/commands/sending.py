"""Sending: single messages, and measurements of the response time of sends."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import (
    BrokerName,
    InvalidArguments,
    Option,
    Result,
    Row,
    Topic,
    command,
    no_such_queue,
)
from rucola.client import Message, Producer
from rucola.client.producer.send_request import SendResult
from rucola.client.trace import MessageTrace
from rucola.domain.queue import MessageQueue
from rucola.errors import MQError
from rucola.presentation import Column, Table, whole

TOOLS_PRODUCER = "TOOLS_PRODUCER"
SENT = (
    Column("#Broker Name", "brokerName"), whole("#QID", "queueId"), Column("#Send Result", "sendStatus"),
    whole("#MsgId", "msgId"),
)  # fmt: skip
MAX_AMOUNT = 100_000
MAX_SIZE = 4 << 20
Amount = Annotated[int, Option("-a --amount", "Number of messages.", min=1, max=MAX_AMOUNT)]
Size = Annotated[int, Option("-s --size", "Bytes per message.", min=1, max=MAX_SIZE)]


@command("sendMessage", writes=True)
async def send_message(
    client: AdminClient,
    topic: Topic,
    body: Annotated[str, Option("-p --body", "Body, as UTF-8 text.", format="text")],
    keys: Annotated[str | None, Option("-k --key", "Keys, separated by spaces.")] = None,
    tags: Annotated[str | None, Option("-c --tags", "Tag.")] = None,
    broker_name: Annotated[str | None, Option("-b --broker", "With -i: send to this broker.")] = None,
    queue_id: Annotated[int | None, Option("-i --qid", "With -b: send to this queue.", min=0)] = None,
    traced: Annotated[bool, Option("-m --msgTraceEnable", "Record a trace, too.")] = False,
) -> Result:
    """Send a message to a topic, or to one queue of it.

    \b
    Examples:
      rucola admin sendMessage -t Orders -p hello -k 4711 -c new
      rucola admin sendMessage -t Orders -p hello -b broker-a -i 0
    """
    if (broker_name is None) != (queue_id is None):
        raise InvalidArguments("-b and -i belong together: a broker name and a queue id")
    queue = None
    if broker_name is not None and queue_id is not None:
        queue = MessageQueue(topic, broker_name, queue_id)
    async with AsyncExitStack() as stack:
        trace = await stack.enter_async_context(MessageTrace(client.connection)) if traced else None
        producer = await stack.enter_async_context(Producer(TOOLS_PRODUCER, client.connection, trace=trace))
        queues = await producer.queues(topic)
        if queue is not None and queue not in queues:
            raise no_such_queue(queue, queues)
        sent = send_json(await producer.send(Message(topic, body.encode(), tags=tags, keys=keys), queue))
    return Result(sent, [Table(SENT, [sent])])


def send_json(result: SendResult) -> Row:
    """Return the result of a send with Apache's names."""
    return {
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
        "sendStatus": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
    }


async def _timed(producer: Producer, queue: MessageQueue, size: int) -> tuple[MQError | None, float]:
    """Time the send of a message of `size` bytes: its error, if any, and milliseconds."""
    begin = time.perf_counter()
    failure = None
    try:
        await producer.send(Message(queue.topic, b"a" * size), queue)
    except MQError as error:
        failure = error
    return failure, (time.perf_counter() - begin) * 1000


@command("checkMsgSendRT", writes=True)
async def check_msg_send_rt(client: AdminClient, topic: Topic, amount: Amount = 100, size: Size = 128) -> Result:
    """Send messages to the queues of a topic in turn, and show the response times.

    Messages are sent one at a time. The exit code is 1 if one of them failed.

    \b
    Examples:
      rucola admin checkMsgSendRT -t BenchmarkTest -a 20 -s 1024
    """
    async with Producer(TOOLS_PRODUCER, client.connection) as producer:
        queues = sorted(await producer.queues(topic))
        # One at a time: concurrent sends would measure the queueing of requests instead of the broker.
        chosen = [queues[number % len(queues)] for number in range(amount)]
        timed = [(queue, *await _timed(producer, queue, size)) for queue in chosen]
    average = sum(took for _, _, took in timed) / len(timed)
    sends = [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "sent": error is None, "rtMs": took}
        for queue, error, took in timed
    ]
    columns = (
        Column("#Broker Name", "brokerName"), whole("#QID", "queueId"), Column("#Send Result", "sent"),
        Column("#RT", "rtMs", "{:.2f}".format),
    )  # fmt: skip
    notes = _failures([error for _, error, _ in timed])
    value = {"avgRtMs": average, "sends": sends}
    return Result(value, [Table(columns, sends), f"Avg RT: {average:.2f}"], notes, is_failure=bool(notes))


@command("sendMsgStatus", writes=True)
async def send_msg_status(
    client: AdminClient,
    broker_name: BrokerName,
    size: Annotated[int, Option("-s --messageSize", "Bytes per message.", min=1, max=MAX_SIZE)] = 128,
    count: Annotated[int, Option("-c --count", "Number of messages.", min=1, max=MAX_AMOUNT)] = 50,
) -> Result:
    """Send messages to the topic named after a broker, and show the response times.

    \b
    Examples:
      rucola admin sendMsgStatus -b broker-a -c 10
    """
    async with Producer(TOOLS_PRODUCER, client.connection) as producer:
        queue = MessageQueue(broker_name, broker_name, 0)
        timed = [await _timed(producer, queue, size) for _ in range(count)]
    text = [f"rt={took:.2f}ms, SendResult={'SEND_OK' if error is None else error}" for error, took in timed]
    notes = _failures([error for error, _ in timed])
    value = [{"sent": error is None, "rtMs": took} for error, took in timed]
    return Result(value, text, notes, is_failure=bool(notes))


def _failures(errors: list[MQError | None]) -> list[str]:
    failures = [error for error in errors if error is not None]
    return [f"{len(failures)} could not be sent: {failures[0]}"] if failures else []


_RT = (
    Column("#Cluster Name", "clusterName"), Column("#Broker Name", "brokerName"),
    Column("#RT", "rtMs", "{:.2f}".format), Column("#successCount", "successCount"), Column("#failCount", "failCount"),
)  # fmt: skip


@command("clusterRT", writes=True, is_repeatable=True)
async def cluster_rt(
    client: AdminClient,
    amount: Amount = 100,
    size: Size = 128,
    cluster: Annotated[str | None, Option("-c --cluster", "Name of a cluster; by default all clusters.")] = None,
    as_log: Annotated[bool, Option("-p --printAsTlog", "Print one line per broker, separated by |.")] = False,
    room: Annotated[str, Option("-m --machineRoom", "With -p: name of the machine room to print.")] = "noname",
) -> Result:
    """Measure the average response time of sends to every broker.

    Each broker gets -a messages in the topic that is named after it. The exit code is 1 if one of them failed.

    \b
    Examples:
      rucola admin clusterRT -a 10
      rucola admin clusterRT -c DefaultCluster -p true -m east -i 10
    """
    clusters = (await client.cluster.info()).cluster_addr_table
    if cluster is not None:
        await client.cluster.masters(cluster)
    rows: list[Row] = []
    async with Producer(TOOLS_PRODUCER, client.connection) as producer:
        for name, broker in sorted((name, one) for name, names in clusters.items() for one in names):
            if cluster in (None, name):
                timed = [await _timed(producer, MessageQueue(broker, broker, 0), size) for _ in range(amount)]
                # Failed sends are counted, but their time-outs do not distort the average.
                good = [took for error, took in timed if error is None]
                average = sum(good) / len(good) if good else 0.0
                values = name, broker, average, len(good), amount - len(good)
                rows.append(dict(zip([one.key for one in _RT], values, strict=True)))
    text: list[str | Table] = [Table(_RT, rows)]
    if as_log:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        text = [f"{now}|{room}|{one['clusterName']}|{one['brokerName']}|{one['rtMs']:.0f}" for one in rows]
    return Result(rows, text, is_failure=any(one["failCount"] for one in rows))
