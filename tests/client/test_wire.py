"""What Apache's broker asked of Apache's client, as recorded, asked of ours: the answers have the same form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rucola.client import PushConsumer
from rucola.client.instance import ClientInstance
from rucola.protocol.codes import RequestCode
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline
from rucola.remoting.server import RemotingServer
from support.cluster import HOST, cluster
from support.recorded_frames import Exchange, decode, exchanges, shape

SERVER_PORTS = (10921, 9877)
GROUP = "W_g_tag"
TIMEOUT_MS = 30_000


def asked_of_the_consumer(golden: Path, serializer: str) -> list[Exchange]:
    """The recorded requests from a broker to the group's client that were answered."""
    return [
        exchange
        for exchange in exchanges(golden)
        if exchange.serializer == serializer
        and exchange.port not in SERVER_PORTS
        and exchange.answer is not None
        and GROUP in decode(exchange.request).ext_fields.values()
    ]


def form(body: bytes) -> Any:
    """The shape of an answer without the figures of consumption, which our client does not take."""
    kind, members = shape(body)
    return kind, {member for member in members if member[0] != "statusTable"}


@pytest.mark.parametrize("serializer", ["JSON", "ROCKETMQ"])
async def test_recorded_requests_get_responses_of_the_same_shape(golden: Path, tmp_path: Path, serializer: str) -> None:
    recorded = asked_of_the_consumer(golden, serializer)
    assert {exchange.code for exchange in recorded} == {
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }

    connections: list[Connection] = []
    asking = RemotingServer(HOST, 0, {}, on_open=connections.append)
    await asking.start()
    async with cluster(tmp_path) as running, ClientInstance(running.namesrv) as client:
        await running.create_topic(await running.start_broker(), "WA")
        consumer = PushConsumer(GROUP, instance=client)
        consumer.subscribe("WA", "TagA || TagB")
        consumer.listen(lambda message: None)
        async with consumer:
            await client.remoting.connect(f"{HOST}:{asking.port}")
            answers = [await connections[0].request(decode(one.request), Deadline(TIMEOUT_MS)) for one in recorded]
    await asking.stop()

    for exchange, answer in zip(recorded, answers, strict=True):
        expected = decode(exchange.answer or b"")
        assert answer.code == expected.code, exchange
        assert answer.opaque == expected.opaque, exchange
        assert answer.serialize_type == expected.serialize_type, exchange
        assert answer.ext_fields.keys() == expected.ext_fields.keys(), exchange
        assert form(answer.body) == form(expected.body), exchange
