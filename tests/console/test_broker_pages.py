"""Clients, configuration, access control, and delayed and half messages."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rucola.acl.credentials import Credentials
from rucola.admin import AdminClient
from rucola.broker.services.configuration import default_properties
from rucola.client import LocalTransactionState, Producer, PushConsumer, TransactionProducer
from rucola.client.connection_options import ConnectionOptions
from rucola.console.broker_state import UNITS
from rucola.domain.user import PolicyEntryInfo
from rucola.message import Message, MessageExt
from rucola.message.topics import SCHEDULE_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection
from support.cluster import cluster
from support.console import field, live_cluster, text_of, visitor


async def test_clients_are_listed_with_versions_and_subscriptions(tmp_path: Path) -> None:
    async with (
        live_cluster(tmp_path) as running,
        visitor(running.namesrv) as console,
        Producer("shop", running.namesrv) as producer,
    ):
        consumer = PushConsumer("billing", running.namesrv)
        consumer.subscribe("Orders", "paid || open")
        consumer.listen(ignore)
        async with consumer:
            for _ in range(4):  # to both brokers
                await producer.send(Message("Orders", b"new"))
            client = re.escape(consumer.instance.client_id)
            text = await console.shows("/clients?q=bill", "push")
            assert re.search(
                rf"billing clustering, push Orders paid \|\| open {client} 127.0.0.1:\d+ PYTHON V4_9_8", text
            )
            assert "1 rows" in text
            assert "billing" in await console.text(f"/clients?q={consumer.instance.client_id}"), (
                "a client that was seen"
            )
            assert "TOOLS_CONSUMER No member is connected." in await console.text("/clients")
            client = re.escape(producer.instance.client_id)
            text = await console.shows("/clients?kind=producers&q=shop", "broker-a, broker-b")
            assert re.search(rf"shop {client} 127.0.0.1:\d+ PYTHON V4_9_8 broker-a, broker-b 20\d\d-", text)
            assert "No producer is connected" in await console.text("/clients?kind=producers&q=none")


FIRST = '{"username":"root","password":"secret of root"}'


async def ignore(_: MessageExt) -> None:
    pass


async def test_settings_are_compared_and_changed_only_from_the_value_that_was_seen(tmp_path: Path) -> None:
    async with (
        live_cluster(tmp_path) as running,
        visitor(running.namesrv, default_settings=default_properties()) as console,
        AdminClient(running.namesrv) as admin,
    ):
        text = await console.text("/configuration")
        assert "brokerName – broker-a" in text
        assert "traceTopicEnable false true" in text
        assert "maxMessageSize" not in text, "it has the default everywhere"
        assert "maxMessageSize 4194304 4194304" in await console.text("/configuration?all=1&q=maxmess")
        addresses = await admin.cluster.masters("DefaultCluster")
        page = await console.get("/configuration?key=maxMessageSize")
        links = re.findall(r'href="(/run/updateBrokerConfig[^"]*)"', page.text)
        assert len(links) == 2
        path = next(one for one in links if addresses["broker-a"].replace(":", "%3A") in one).replace("&amp;", "&")
        assert 'name="expected" value="4194304"' in (await console.get(path)).text
        form = {"address": addresses["broker-a"], "key": "maxMessageSize", "value": "1000", "expected": "4194304"}
        asked = await console.post("/run/updateBrokerConfig", form)
        assert f"{addresses['broker-a']} 4194304 1000" in text_of(asked), "the preview"
        # Somebody else is faster.
        await admin.brokers.update_config(addresses["broker-a"], {"maxMessageSize": "2000"})
        form |= {"seen": field(asked, "seen"), "token": field(asked, "token")}
        refused = await console.http.post(console.url("/run/updateBrokerConfig"), data=form)
        assert refused.status_code == 400
        assert (await admin.brokers.config(addresses["broker-a"]))["maxMessageSize"] == "2000"
        asked = await console.post("/run/updateBrokerConfig", form | {"expected": "2000", "seen": ""})
        form |= {"seen": field(asked, "seen"), "expected": "2000"}
        done = await console.http.post(console.url("/run/updateBrokerConfig"), data=form)
        assert done.status_code == 200
        assert "maxMessageSize 4194304 1000 " in await console.text("/configuration"), "at once"


async def test_users_and_policies_are_shown_with_the_brokers_that_lack_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_INIT_AUTHENTICATION_USER", FIRST)
    settings = {"authentication_enabled": True, "authorization_enabled": True}
    async with cluster(tmp_path) as running:
        credentials = Credentials("root", "secret of root")
        options = ConnectionOptions(running.namesrv, credentials=credentials)
        addresses = [(await running.start_broker(name, **settings)).address for name in ("broker-a", "broker-b")]
        async with AdminClient(running.namesrv, credentials=credentials) as admin:
            for address in addresses:
                await admin.access.create_user(address, "ann", "secret of ann")
            await admin.access.create_user(addresses[0], "bob", "secret of bob")
            entry = PolicyEntryInfo(actions=["Pub", "Sub"], source_ips=["10.0.0.0/8"], decision="Allow")
            await admin.access.set_policies(addresses[0], "User:ann", ["Topic:Orders"], entry)
        async with visitor(options) as console:
            page = await console.get("/access")
            text = text_of(page)
            assert "ann Normal enable all " in text
            assert "bob Normal enable only on broker-a " in text
            assert "User:ann Topic:Orders Pub, Sub 10.0.0.0/8 Allow only on broker-a" in text
            assert "secret" not in page.text
            (path,) = re.findall(r'href="(/run/updateAcl[^"]*)"', page.text)
            form = await console.get(path.replace("&amp;", "&"))
            assert 'value="Pub,Sub"' in form.text
    async with cluster(tmp_path / "open") as running:
        await running.start_broker()
        async with visitor(running.namesrv) as console:
            assert "broker-a: access control has neither users nor files" in await console.text("/access")


async def test_delayed_and_half_messages_wait_by_their_time(tmp_path: Path) -> None:
    async def execute(message: Message) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    async def check(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        due_ms = (time.time_ns() // 1_000_000 + 7_200_000) // 1000 * 1000
        async with Producer("shop", running.namesrv) as producer:
            queue = next(one for one in await producer.queues("Orders") if one.broker_name == "broker-b")
            await producer.send(Message("Orders", b"soon", properties={"DELAY": "15"}), queue)
            await producer.send(Message("Orders", b"later", properties={"TIMER_DELIVER_MS": str(due_ms)}), queue)
        async with TransactionProducer("payments", running.namesrv, check=check) as transactions:
            await transactions.send_in_transaction(Message("Orders", b"half"), execute)
            text = await console.shows("/delayed", "broker-b 15 1 ")
            assert re.search(r"broker-b time of its own 1 20\d\d-\S+ \S+ UTC 20\d\d-", text)
            assert re.search(r"(19|20) min broker-b:14:0 .* (1\.9|2) h broker-b:0:0 ", text)
            assert re.search(r"broker-a (0 0 broker-b 1|1 0 broker-b 0) 0 ", text)
            assert "broker-b delay levels 0 0 1 0 0 broker-b time of its own 0 0 0 1 0 " in text
            assert "estimate" not in text
            page = await console.get("/delayed")
            (path, _) = re.findall(r'href="(/message[^"]*)"', page.text)
            assert "soon" in await console.text(path.replace("&amp;", "&"))


async def test_what_a_delay_level_delivered_does_not_wait(tmp_path: Path) -> None:
    """From a broker of Apache's, too, which says how far each level is, but not how many transactions are open."""
    now_ms = time.time_ns() // 1_000_000
    level = {"brokerName": "apache", "topic": SCHEDULE_TOPIC, "queueId": 2}
    half = {"brokerName": "apache", "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": 0}
    asked: list[tuple[int, int]] = []

    def table(queue: dict[str, Any], **at: int) -> bytes:
        return b'{"offsetTable":{%s:%s}}' % (msgspec.json.encode(queue), msgspec.json.encode(at))

    def answer(_: Connection, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        body: bytes
        match RequestCode(command.code):
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                body = msgspec.json.encode({"table": {"scheduleMessageOffset_3": "700,1000"}})
            case RequestCode.GET_TOPIC_STATS_INFO if fields["topic"] == SCHEDULE_TOPIC:
                body = table(level, lastUpdateTimestamp=1, maxOffset=1000, minOffset=0)
            case RequestCode.QUERY_CONSUME_QUEUE:
                begin, count = int(fields["index"]), int(fields["count"])
                asked.append((begin, count))
                units = range(begin, min(1000, begin + count))
                data = [
                    {"physicOffset": n, "physicSize": 1, "tagsCode": now_ms + 1000 * (n - 700) + 600_000} for n in units
                ]
                body = msgspec.json.encode({"maxQueueIndex": 1000, "minQueueIndex": 0, "queueData": data})
            case RequestCode.GET_CONSUME_STATS:
                body = table(half, brokerOffset=9, consumerOffset=5, lastTimestamp=1)
            case _:
                return command.response(ResponseCode.TOPIC_NOT_EXIST, remark="none")
        return command.response(ResponseCode.SUCCESS, body=body)

    codes = (
        RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_TOPIC_STATS_INFO, RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.GET_CONSUME_STATS,
    )  # fmt: skip
    async with cluster(tmp_path) as running:
        await running.scripted_broker("apache", "Orders", dict.fromkeys(codes, answer))
        async with visitor(running.namesrv) as console:
            page = await console.get("/delayed")
    text = text_of(page)
    assert re.search(r"apache 3 300 20\d\d-\S+ \S+ UTC 20\d\d-", text)
    assert re.search(r"(9\.\d|10) min apache:2:700 ", text), "the next one, not one of the newest"
    assert asked == [(700, UNITS), (999, UNITS)]
    assert "apache at most 4 0 " in text
    assert "an estimate" in text


@pytest.mark.parametrize("path", ["/clients?kind=producers", "/configuration", "/access", "/delayed"])
async def test_what_concerns_all_topics_takes_a_viewer_of_all(tmp_path: Path, path: str) -> None:
    accounts = tmp_path / "accounts.properties"
    accounts.write_text("eve=- operator Topic:Orders, viewer Group:billing\nann=- viewer\n")
    proxy = {"accounts": accounts, "user_header": "X-User", "trusted_proxies": ("127.0.0.1",)}
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, **proxy) as console:
        assert (await console.get(path, **{"x-user": "eve"})).status_code == 403
        page = await console.get(path, **{"x-user": "ann"})
        assert page.status_code == 200
        assert not re.findall(r"/run/(update|create|delete)", page.text), "a viewer is offered no change"
        consumers = text_of(await console.get("/clients", **{"x-user": "eve"}))
        assert "billing" in consumers
        assert "TOOLS_CONSUMER" not in consumers
        assert (await console.get("/tail?topic=Orders", **{"x-user": "eve"})).status_code == 200
        for other in ("/tail?topic=TBW102", "/tail/events?topic=TBW102"):
            assert (await console.get(other, **{"x-user": "eve"})).status_code == 403
