"""Every action of the catalogue in Chromium: from a form to the question to the result, and what the brokers then have.

Once with scripts; once without, behind a proxy that serves the console below a path.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from rucola.admin import AdminClient, MessageQueue, SubscriptionGroupConfig, TopicConfig
from rucola.admin.commands import CATALOGUE, Risk
from rucola.admin.commands.arguments import is_local
from rucola.broker.broker import Broker
from rucola.client import LocalTransactionState, Message, Producer, PushConsumer, TransactionProducer
from rucola.client.connection_options import ConnectionOptions
from rucola.errors import TopicNotFound
from rucola.message import MessageExt
from rucola.message.topics import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.settings import Secret
from rucola.store.config import BrokerRole
from support.access import ADMIN, guarded_cluster
from support.browser import Browser, BrowserPage, browser
from support.cluster import Cluster, Tally, cluster
from support.console import Visitor, add_dead_letters, visitor
from support.pop import pop, received
from support.prefix_proxy import prefix_proxy
from support.waiting import until

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CLUSTER = "DefaultCluster"
ACTIONS = {one.name for one in CATALOGUE.values() if one.risk is not Risk.READ and not is_local(one)}
ACTIONS |= {f"{one.name} {argument}" for one in CATALOGUE.values() for argument in one.effects}
"""Commands that change something, and arguments with which others do."""
CLEANED = "Cleaned1", "Cleaned2", "Cleaned3"
HOSTILE = "<img src=x onerror=alert(1)>\u202e"

Effect = Callable[[], Awaitable[bool]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


class Tour:
    """A visitor of one console who carries out actions; `done` has their names."""

    def __init__(self, page: BrowserPage, console: Visitor, url: str, admin: AdminClient) -> None:
        self.page = page
        self.console = console
        self.admin = admin
        self.done: set[str] = set()
        self._url = url

    async def open(self, path: str, *links: str) -> None:
        """Load a page, and follow the links that a person would take from it."""
        await self.page.goto(self._url + path)
        for link in links:
            await self.page.follow(link)

    async def act(self, action: str, effect: Effect, **fields: str) -> str:
        """Carry out a command from its form on the list of commands; return the text of its result."""
        await self.open("/commands", f"main a[href$='/run/{action.split()[0]}']")
        return await self.act_here(action, effect, **fields)

    async def act_here(
        self, action: str, effect: Effect, *, button: str = "main form.fields button", **fields: str
    ) -> str:
        """Carry out a command from the form on this page. Nothing has happened before the question is answered."""
        assert await self.page.evaluate("document.querySelectorAll('main form').length"), await self.page.text()
        for name, value in fields.items():
            field = f"main form [name={name}]"
            if await self.page.evaluate(f"document.querySelector('{field}').tagName") == "SELECT":
                await self.page.evaluate(f"document.querySelector('{field}').value = {json.dumps(value)}")
            else:
                await self.page.fill(field, value)
        await self.page.follow(button)
        return await self.answer(action, effect)

    async def answer(self, action: str, effect: Effect) -> str:
        """Answer the question of a command, and return the text of its result."""
        assert await self.page.text(".confirm .question"), (action, await self.page.text())
        assert not await effect(), f"{action} has an effect before the question is answered"
        await self.page.follow(".confirm form button")
        text = await self.page.text()
        assert await self.page.evaluate("!!document.querySelector('main .good, main table')"), (action, text)
        assert not await self.page.evaluate("!!document.querySelector('main .bad')"), (action, text)
        await until(effect)
        (newest, *_) = await self.console.console.audit.entries()
        assert (action.split()[0] in newest.action, (newest.result or "").partition(";")[0]) == (True, "success")
        self.done.add(action)
        return text


@asynccontextmanager
async def tours(chromium: Browser, console: Visitor, admin: AdminClient, *, with_scripts: bool) -> AsyncIterator[Tour]:
    async with AsyncExitStack() as stack:
        url = console.url("")
        page = await chromium.page()
        if not with_scripts:
            proxy = await stack.enter_async_context(prefix_proxy(urlsplit(url).port or 0))
            url = proxy.url
            await page.without_scripts()
        yield Tour(page, console, url, admin)
        assert page.problems == []
        if not with_scripts:
            assert (proxy.strays, proxy.passed > 0) == ([], True)


@asynccontextmanager
async def prepared(path: Path) -> AsyncIterator[tuple[Cluster, Broker]]:
    """Two brokers with topic Orders and group billing, and a third one with a slave, on which nothing waits."""
    discarding = {"transaction_check_interval": 20, "transaction_check_max": 0, "transaction_time_out": 0}
    async with cluster(path) as running, AdminClient(running.namesrv) as admin:
        # Files expire when a command asks for it, not by the hour.
        expiring = {"clean_resource_interval": 50, "file_reserved_time": 0, "delete_when": "99"}
        first, second, third = [
            await running.start_broker(name, store=expiring, **discarding)
            for name in ("broker-a", "broker-b", "broker-c")
        ]
        for broker in (first, second, third):
            for topic in CLEANED:
                await running.create_topic(broker, topic, 1)
        await running.create_topic(first, "Moved", 1)
        for broker in (first, second):
            await running.create_topic(broker, "Orders", 2)
            await admin.groups.create_or_update(broker.address, SubscriptionGroupConfig(group_name="billing"))
        for group in ("popping", "moving"):
            await admin.groups.create_or_update(first.address, SubscriptionGroupConfig(group_name=group))
        async with Producer("shop", running.namesrv) as producer:
            for number in range(40):
                await producer.send(Message("Orders", b"order %d" % number, keys=str(number)))
        for name, broker in (("broker-a", first), ("broker-b", second)):
            for queue_id in range(2):
                await admin.offsets.commit(broker.address, "billing", MessageQueue("Orders", name, queue_id), 5)
        yield running, first


async def walk_topics(tour: Tour, addresses: dict[str, str]) -> None:
    admin = tour.admin

    async def config(topic: str, broker: str = "broker-a") -> TopicConfig | None:
        return (await admin.topics.configs(addresses[broker])).get(topic)

    async def has(queues: int) -> bool:
        found = await config("Walked")
        return found is not None and found.write_queue_nums == queues

    await tour.open("/topics", "main a[href*='/run/updateTopic']")
    new = {"cluster": CLUSTER, "topic": "Walked", "read_queue_nums": "2", "write_queue_nums": "2"}
    await tour.act_here("updateTopic", lambda: has(2), **new)
    await tour.open("/topic?name=Walked", "main a[href*='/run/updateTopic']")
    await tour.act_here("updateTopic", lambda: has(3), read_queue_nums="3", write_queue_nums="3")

    async def is_read_only() -> bool:
        return getattr(await config("Walked"), "perm", 6) == 4

    await tour.act("updateTopicPerm", is_read_only, address=addresses["broker-a"], topic="Walked", perm="4")

    async def is_ordered() -> bool:
        return await admin.name_servers.order_conf("Walked") == {"broker-b": 3}

    await tour.act("updateOrderConf", is_ordered, topic="Walked", method="put", conf="broker-b:3")

    async def is_gone() -> bool:
        return await config("Walked") is None and await config("Walked", "broker-b") is None

    await tour.open("/topic?name=Walked", "main a[href*='/run/deleteTopic']")
    await tour.act_here("deleteTopic", is_gone)


async def walk_sending(tour: Tour, running: Cluster, addresses: dict[str, str]) -> None:
    admin = tour.admin

    async def count(topic: str = "Orders") -> int:
        return sum(at.max_offset for at in (await admin.topics.stats(topic)).values())

    async def grows_to(wanted: int, topic: str = "Orders") -> bool:
        return await count(topic) == wanted

    before = await count()
    await tour.open("/topic?name=Orders", "main a[href*='/run/sendMessage']")
    await tour.act_here(
        "sendMessage", lambda: grows_to(before + 1), body=HOSTILE, keys="hostile", broker_name="broker-a", queue_id="0"
    )
    (sent,) = (await admin.messages.query_by_key("Orders", "hostile")).messages
    assert sent.body.decode() == HOSTILE
    await tour.act("checkMsgSendRT", lambda: grows_to(before + 3), topic="Orders", amount="2")
    own = await count("broker-a")
    await tour.act("sendMsgStatus", lambda: grows_to(own + 2, "broker-a"), broker_name="broker-a", count="2")
    await tour.act("clusterRT", lambda: grows_to(own + 4, "broker-a"), amount="2")

    message = f"/message?id={sent.offset_msg_id}"
    await tour.open(message, "main a[href*='resend=true']")
    await tour.answer("queryMsgById resend", lambda: grows_to(before + 4))
    assert len((await admin.messages.query_by_key("Orders", "hostile")).messages) == 2

    heard: Tally[MessageExt] = Tally()

    async def listen(one: MessageExt) -> None:
        heard.add(one)

    consumer = PushConsumer("billing", running.namesrv)
    consumer.subscribe("Orders", "never")
    consumer.listen(listen)

    async def is_consumed(times: int) -> bool:
        return [one.keys for one in heard.items] == ["hostile"] * times

    async with consumer:
        client = {"client_id": consumer.instance.client_id}
        await tour.open(message, "main a[href*='/run/queryMsgByUniqueKey']")
        await tour.act_here("queryMsgByUniqueKey client_id", lambda: is_consumed(1), **client)
        given = {"msg_ids": str(sent.offset_msg_id), "consumer_group": "billing"}
        await tour.act("queryMsgById client_id", lambda: is_consumed(2), **given, **client)

    async def execute(_: Message) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    async def check(_: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    async with TransactionProducer("payments", running.namesrv, check=check) as transactions:
        await transactions.send_in_transaction(Message("Orders", b"half"), execute)

    async def discarded() -> dict[MessageQueue, int]:
        """The ends of the queues of discarded transactions; brokers make the topic for the first one."""
        found = {}
        for address in addresses.values():
            if TRANS_CHECK_MAX_TIME_TOPIC in await admin.topics.configs(address):
                found |= await admin.topics.stats_at(address, TRANS_CHECK_MAX_TIME_TOPIC)
        return {queue: at.max_offset for queue, at in found.items() if at.max_offset}

    async def are_discarded(count: int) -> bool:
        return [*(await discarded()).values()] == [count]

    async def is_routed() -> bool:
        try:
            await admin.topics.route(TRANS_CHECK_MAX_TIME_TOPIC)
        except TopicNotFound:
            return False
        return True

    await until(lambda: are_discarded(1))
    await until(is_routed)
    half = await admin.messages.at(next(iter(await discarded())), 0)
    # After one more check, which is one too many.
    await tour.act("resumeCheckHalfMessage", lambda: are_discarded(2), msg_ids=str(half.offset_msg_id))


async def walk_offsets(tour: Tour) -> None:
    admin = tour.admin

    async def offsets(group: str = "billing") -> list[int]:
        addresses = (await admin.cluster.masters(CLUSTER)).values()
        stats = [await admin.groups.consume_stats_at(address, group, "Orders") for address in addresses]
        found = {queue: at.consumer_offset for one in stats for queue, at in one.offset_table.items()}
        return [found[queue] for queue in sorted(found)]

    async def ends() -> list[int]:
        return [at.max_offset for _, at in sorted((await admin.topics.stats("Orders")).items())]

    async def at_ends() -> bool:
        return await offsets() == await ends()

    async def at_fives() -> bool:
        return await offsets() == [5] * 4

    async def first_is(offset: int) -> bool:
        return (await offsets())[0] == offset

    assert await at_fives()
    await tour.open("/group?name=billing", "main a.danger[href*=resetOffsetByTime]")
    await tour.act_here("resetOffsetByTime", at_ends, timestamp_ms="now")
    await tour.page.follow("main form button")  # Undo
    await tour.answer("resetOffsets", at_fives)
    given = {"group": "billing", "topic": "Orders"}
    await tour.act("skipAccumulatedMessage", at_ends, **given)
    place = {"broker_name": "broker-a", "queue_id": "0", "queue_offset": "3"}
    await tour.act("resetOffset", lambda: first_is(3), **given, **place)

    async def is_copied() -> bool:
        return await offsets("copy") == await offsets()

    new = {"cluster": CLUSTER, "group_name": "copy", "retry_max_times": "7"}

    async def has_group() -> bool:
        for address in (await admin.cluster.masters(CLUSTER)).values():
            found = (await admin.groups.configs(address)).get("copy")
            if found is None or found.retry_max_times != 7:
                return False
        return True

    await tour.act("updateSubGroup", has_group, **new)
    copied = {"source": "billing", "destination": "copy", "topic": "Orders", "offline": "true"}
    await tour.act("cloneGroupOffset", is_copied, **copied)

    addresses = (await admin.cluster.masters(CLUSTER)).values()

    async def is_deleted() -> bool:
        kept = [one.group for address in addresses for one in await admin.offsets.all(address)]
        return "copy" not in kept and "billing" in kept and not await has_group()

    await tour.act("deleteSubGroup", is_deleted, cluster=CLUSTER, group="copy", remove_offset="true")


async def walk_pop(tour: Tour, running: Cluster, first: Broker) -> None:
    admin = tour.admin

    async def held() -> int:
        return sum(len(one.messages) for one in (await admin.groups.pop_status(first.address, "popping")).queues)

    async def is_released() -> bool:
        return not await held()

    taken = received(await pop(running.peer(first), consumer_group="popping", topic="Orders", queue_id=0))
    assert await held() == len(taken) > 0
    await tour.open("/group?name=popping", "main a[href*='/run/popStatus']")
    assert "Orders" in await tour.page.text("main table")
    given = {"address": first.address, "group": "popping", "topic": "Orders"}
    await tour.act("releasePop", is_released, **given)

    async def is_by_pop() -> bool:
        file = running.path / "broker-a" / "config" / "messageRequestMode.json"
        return file.exists() and "popping" in file.read_text()

    chosen = {"address": first.address, "topic": "Orders", "group_name": "popping", "mode": "POP"}
    await tour.act("setConsumeMode", is_by_pop, **chosen)


async def walk_dead_letters(tour: Tour, running: Cluster) -> None:
    admin = tour.admin
    await add_dead_letters(running, {HOSTILE: 2, "no card": 1})
    given = "main form.filter button[value='{}']"

    async def waiting(count: int) -> bool:
        return (await admin.dead_letters.stats("billing")).waiting == count

    await tour.open("/dead_letters?group=billing", given.format("true"))
    assert "Orders" in await tour.page.text("main table"), "a dry run asks nothing"
    assert await waiting(3)
    await tour.open("/dead_letters?group=billing", "main tbody a[href*='/dead_letter?']")
    letter = parse_qs(urlsplit(await tour.page.evaluate("location.href")).query)["id"][0]
    key = (await admin.messages.get(letter)).msg_id

    async def is_mended() -> bool:
        copies = (await admin.messages.query_by_unique_key("Orders", key)).messages
        return [(one.body, one.tags) for one in copies] == [(b"mended", "paid")]

    await tour.act_here("redriveDlq", is_mended, body="mended")
    await tour.open("/dead_letters?group=billing")
    await tour.act_here("redriveDlq", lambda: waiting(0), button=given.format(""), per_second="500")
    await tour.open("/dead_letters?group=billing")
    for form in ("json", "csv"):
        saved = await tour.page.download(f"main a[href*='format={form}']", running.path / f"saved-{form}")
        lines = saved.read_text(encoding="utf-8").splitlines()
        assert len([line for line in lines if "img src=x" in line]) == 2


async def walk_servers(tour: Tour, running: Cluster, addresses: dict[str, str]) -> None:
    admin, first = tour.admin, addresses["broker-a"]

    async def setting_is(value: str) -> bool:
        return (await admin.brokers.config(first))["maxMessageSize"] == value

    await tour.open("/configuration?key=maxMessageSize", "main a[href*='/run/updateBrokerConfig']")
    form = await tour.page.evaluate("document.querySelector('main [name=address]').value")
    await tour.act_here("updateBrokerConfig", lambda: setting_is("4000000"), value="4000000")
    assert form == first
    # Somebody else is faster than a form that was loaded before.
    await tour.open("/configuration?key=maxMessageSize", "main a[href*='/run/updateBrokerConfig']")
    await admin.brokers.update_config(first, {"maxMessageSize": "3000000"})
    await tour.page.fill("main [name=value]", "2000000")
    await tour.page.follow("main form button")
    await tour.page.follow(".confirm form button")
    assert "3000000" in await tour.page.text("main .bad")
    assert "400 (Bad Request)" in tour.page.problems.pop()
    assert await setting_is("3000000"), "a form with an old value changes nothing"

    async def is_set(key: str, value: str) -> bool:
        (config,) = (await admin.name_servers.configs()).values()
        return config[key] == value

    change = {"key": "orderMessageEnable", "value": "true"}
    await tour.act("updateNamesrvConfig", lambda: is_set(**change), **change)

    async def kv_is(value: str | None) -> bool:
        return await admin.name_servers.get_kv("N", "K") == value

    entry = {"namespace": "N", "key": "K"}
    await tour.act("updateKvConfig", lambda: kv_is("V"), value="V", **entry)
    await tour.act("deleteKvConfig", lambda: kv_is(None), **entry)

    async def perm_is(perm: int, broker: str) -> bool:
        route = await admin.topics.route(CLEANED[0])
        return {one.perm for one in route.queue_datas if one.broker_name == broker} == {perm}

    await tour.act("wipeWritePerm", lambda: perm_is(4, "broker-b"), broker_name="broker-b")
    await tour.act("addWritePerm", lambda: perm_is(6, "broker-b"), broker_name="broker-b")
    at_once = {"interval_s": "0.01", "route_s": "0"}
    await tour.act("drain", lambda: perm_is(4, "broker-c"), broker_name="broker-c", **at_once)
    assert await tour.page.evaluate("[...document.querySelectorAll('main form button')].length") == 1, "its undo"
    await tour.page.follow("main form button")
    await tour.answer("addWritePerm", lambda: perm_is(6, "broker-c"))

    moved = {"from_broker": "broker-a", "to_broker": "broker-b"}

    async def is_moved() -> bool:
        found = [(await admin.topics.configs(addresses[one])).get("Moved") for one in moved.values()]
        return [one.perm if one is not None else 0 for one in found] == [4, 6]

    await tour.act("moveTopic", is_moved, topic="Moved", **moved, **at_once)

    async def is_group_moved() -> bool:
        found = ["moving" in await admin.groups.configs(addresses[one]) for one in moved.values()]
        return found == [False, True]

    await tour.act("moveGroup", is_group_moved, group="moving", **moved)


async def walk_cleaning(tour: Tour, running: Cluster, addresses: dict[str, str]) -> None:
    admin, address, directory = tour.admin, addresses["broker-b"], running.path / "broker-b"
    async with Producer("shop", running.namesrv) as producer:
        for topic in CLEANED:
            await producer.send(Message(topic, b"x"), MessageQueue(topic, "broker-b", 0))
        for _ in range(2):
            await producer.send(Message("Orders", os.urandom(600_000)), MessageQueue("Orders", "broker-b", 0))
    (file, _) = sorted((directory / "commitlog").iterdir())

    async def has_no_queue(topic: str) -> bool:
        return not (directory / "consumequeue" / topic / "0").exists()

    async def is_expired() -> bool:
        begin = (await admin.brokers.runtime_stats(address))["commitLogMinOffset"]
        # The broker has then looked for queues without messages, this one the last.
        return begin != "0" and not file.exists() and await has_no_queue(CLEANED[-1])

    await admin.topics.delete_on_broker(address, CLEANED[-1])
    await tour.act("deleteExpiredCommitLog", is_expired, address=address)
    for command, topic in zip(("cleanUnusedTopic", "cleanExpiredCQ"), CLEANED, strict=False):
        await admin.topics.delete_on_broker(address, topic)
        await tour.act(command, partial(has_no_queue, topic), address=address)


async def walk_roles(tour: Tour, running: Cluster, addresses: dict[str, str]) -> None:
    admin, first = tour.admin, addresses["broker-c"]
    role = {"broker_role": BrokerRole.SLAVE}
    slave = await running.start_broker("broker-c", store=role, directory="slave", broker_id=1)

    async def is_master(address: str) -> bool:
        return (await admin.roles.status(address)).is_accepting

    async def is_slave(address: str) -> bool:
        return (await admin.roles.status(address)).role == "SLAVE"

    async def follows() -> bool:
        await tour.console.console.collector.refresh()
        known = [one.address for one in tour.console.console.collector.snapshot.brokers]
        return (await admin.roles.status(slave.address)).is_following and slave.address in known

    await until(follows)
    await tour.open("/", f"main a[href*='{slave.address.replace(':', '%3A')}']", "main a[href*=switchover]")
    await tour.act_here("switchover", lambda: is_master(slave.address))
    await tour.act("demote", lambda: is_slave(slave.address), address=slave.address, force="true")
    await tour.act("promote", lambda: is_master(first), address=first, force="true")


async def walk_access(tour: Tour, plain: str, policies: str) -> None:
    admin = tour.admin

    async def version() -> int:
        return sum(counter for counter, _ in (await admin.access.versions(plain)).files.values())

    async def has_version(wanted: int) -> bool:
        return await version() == wanted

    before = await version()
    account = {"address": plain, "access_key": "walker1"}
    await tour.act(
        "updateAclConfig", lambda: has_version(before + 1), **account, secret_key="a secret", topic_perms="Orders=SUB"
    )
    assert "a secret" not in await tour.page.text()
    await tour.act("deleteAclConfig", lambda: has_version(before + 2), **account)
    await tour.act("updateGlobalWhiteAddr", lambda: has_version(before + 3), address=plain, patterns="10.0.0.1")

    async def status_is(status: str | None) -> bool:
        user = await admin.access.user(policies, "ann")
        return (user.user_status if user is not None else None) == status

    user = {"address": policies, "name": "ann"}
    await tour.act("createUser", lambda: status_is("enable"), **user, password="secret of ann")
    assert "secret of ann" not in await tour.page.text()
    await tour.act("updateUser", lambda: status_is("disable"), **user, user_status="disable")

    async def actions_are(*wanted: str) -> bool:
        found = await admin.access.policies(policies, "User:ann")
        entries = [entry for policy in (found.policies if found is not None else ()) for entry in policy.entries]
        return [action for entry in entries for action in entry.actions or ()] == [*wanted]

    policy = {"address": policies, "subject": "User:ann", "resources": "Topic:Orders", "decision": "Allow"}
    await tour.act("createAcl", lambda: actions_are("Sub"), **policy, actions="Sub")
    await tour.act("updateAcl", lambda: actions_are("Pub"), **policy, actions="Pub")
    await tour.act("deleteAcl", actions_are, address=policies, subject="User:ann")
    await tour.act("deleteUser", lambda: status_is(None), **user)


@pytest.mark.parametrize("with_scripts", [True, False], ids=["scripts", "no-scripts-behind-proxy"])
async def test_every_action_is_carried_out(tmp_path: Path, chromium: Browser, with_scripts: bool) -> None:
    """The set of the actions is that of the catalogue: a new one must be added to the walk."""
    config = {"requests_per_second": 10_000, "trusted_proxies": ("127.0.0.1",), "interval_s": 10.0}
    async with guarded_cluster(tmp_path / "guarded") as running:
        plain = await running.start_broker("plain", name="broker-a")
        operator = '{"username": "operator", "password": "secret of the operator"}'
        users = {"acl_enable": False, "authentication_enabled": True, "authorization_enabled": True}
        policies = await running.start_broker(
            "users", name="broker-b", init_authentication_user=Secret(operator), **users
        )
        options = ConnectionOptions(running.namesrv, credentials=ADMIN)
        async with (
            visitor(options, **config) as console,
            AdminClient(running.namesrv, credentials=ADMIN) as admin,
            tours(chromium, console, admin, with_scripts=with_scripts) as tour,
        ):
            await console.console.collector.wait_first()
            await walk_access(tour, plain.address, policies.address)
            done = tour.done
    async with (
        prepared(tmp_path / "open") as (running, first),
        visitor(running.namesrv, **config) as console,
        AdminClient(running.namesrv) as admin,
        tours(chromium, console, admin, with_scripts=with_scripts) as tour,
    ):
        await console.console.collector.wait_first()
        addresses = await admin.cluster.masters(CLUSTER)
        await walk_offsets(tour)
        await walk_topics(tour, addresses)
        await walk_sending(tour, running, addresses)
        await walk_pop(tour, running, first)
        await walk_dead_letters(tour, running)
        await walk_servers(tour, running, addresses)
        await walk_cleaning(tour, running, addresses)
        await walk_roles(tour, running, addresses)
        assert done | tour.done == ACTIONS
