"""Routers: decorated handlers of typed values, their results, retries and misuse, on a real broker."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rucola.admin import AdminClient
from rucola.client import (
    ClientInstance,
    ConfigError,
    ConsumeFromWhere,
    InvalidMessage,
    MessageExt,
    MessageModel,
    ReconsumeLater,
    Router,
)
from rucola.client.consumer import push_consumer
from rucola.testing.rocketmq import RocketMQ
from support.waiting import until

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
AT_ONCE = pytest.mark.rocketmq(messageDelayLevel="0s", enablePropertyFilter="true")
PIZZA = b'{"dish":"pizza","price":9}'


@dataclasses.dataclass
class Order:
    dish: str
    price: int


@dataclasses.dataclass
class Meal:
    name: str


async def bodies(rocketmq: RocketMQ, topic: str, count: int = 1) -> list[bytes]:
    """The bodies of a topic, once it has that many."""
    return [message.body for message in await asyncio.to_thread(rocketmq.wait_for_messages, topic, count)]


async def send(rocketmq: RocketMQ, topic: str, *sent: bytes, **options: Any) -> None:
    for body in sent:
        await asyncio.to_thread(lambda body=body: rocketmq.send(topic, body, **options))


async def test_a_value_comes_in_and_a_value_goes_out(rocketmq: RocketMQ) -> None:
    router = Router("shop")

    @router.subscriber("Orders", group="cooks", filter="food || drinks", consume_from=FIRST)
    @router.publisher("Meals", tags="hot")
    async def cook(order: Order) -> Meal:
        return Meal(order.dish)

    await send(rocketmq, "Orders", b'{"dish":"soap","price":1}', tags="household")
    await send(rocketmq, "Orders", PIZZA, tags="food")
    async with router:
        assert await bodies(rocketmq, "Meals") == [b'{"name":"pizza"}']
    (meal,) = rocketmq.messages("Meals", tags="hot")
    assert meal.body == b'{"name":"pizza"}'
    assert await cook(Order("pasta", 8)) == Meal("pasta"), "a decorated handler is the function itself"


async def test_a_plain_function_runs_in_a_thread_and_both_orders_of_decorators_work(rocketmq: RocketMQ) -> None:
    router = Router("shop")
    threads = []

    @router.publisher("Meals")
    @router.publisher("Bills")
    @router.subscriber("Orders", group="cooks", consume_from=FIRST)
    def cook(order: Order) -> Meal | None:
        threads.append(threading.current_thread())
        return Meal(order.dish) if order.price else None

    await send(rocketmq, "Orders", b'{"dish":"water","price":0}', PIZZA)
    async with router:
        assert await bodies(rocketmq, "Meals") == await bodies(rocketmq, "Bills") == [b'{"name":"pizza"}']
        await until(lambda: len(threads) == 2)
    assert threading.main_thread() not in threads
    assert len(rocketmq.messages("Meals")) == 1, "None is not sent"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["annotations", "value"])
async def test_a_handler_takes_what_its_annotations_say(rocketmq: RocketMQ, where: str) -> None:
    router, got = Router("shop"), asyncio.Queue[Any]()

    @router.subscriber("Raw", group="raw", consume_from=FIRST)
    async def raw(body: bytes) -> None:
        got.put_nowait(body)

    @router.subscriber("Text", group="text", consume_from=FIRST)
    async def text(body: str) -> None:
        got.put_nowait(body)

    @router.subscriber("Message", group="message", consume_from=FIRST)
    async def message(message: MessageExt) -> None:
        got.put_nowait((message.keys, message.body))

    @router.subscriber("Typed", group="typed", consume_from=FIRST)
    async def typed(message: MessageExt[Order]) -> None:
        got.put_nowait((message.keys, message.value))

    both: Callable[..., Any]
    if where == "annotations":

        async def both(message: MessageExt[Order], order: Order, verbose: bool = False) -> None:
            got.put_nowait((message.keys, order, verbose))

        router.subscriber("Both", group="both", consume_from=FIRST)(both)
    else:

        async def both(order, message: MessageExt[Order]):  # type: ignore[no-untyped-def]
            got.put_nowait((message.keys, order, False))

        router.subscriber("Both", group="both", consume_from=FIRST, value=Order)(both)

    for topic, body in (
        ("Raw", b"\xff"),
        ("Text", "Käse".encode()),
        ("Message", b"m"),
        ("Typed", PIZZA),
        ("Both", PIZZA),
    ):
        await send(rocketmq, topic, body, keys="k")
    taken = [b"\xff", "Käse", ("k", b"m"), ("k", Order("pizza", 9)), ("k", Order("pizza", 9), False)]
    async with router:
        for _ in range(5):
            taken.remove(await got.get())


class Waiter:
    """A handler with state, whose call is a coroutine."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, meal: Meal) -> str:
        await asyncio.sleep(0)
        return f"{self.name}: {meal.name}"

    async def serve(self, meal: Meal) -> str:
        return await self(meal)


async def test_objects_and_methods_are_handlers_too(rocketmq: RocketMQ) -> None:
    router, waiter = Router("shop"), Waiter("Ada")
    served = router.publisher("Served", value=str)
    router.subscriber("Meals", group="objects", value=Meal, consume_from=FIRST)(served(waiter))
    router.subscriber("Meals", group="methods", consume_from=FIRST)(served(waiter.serve))
    with pytest.raises(ConfigError):
        router.subscriber("Meals", group="other")(Waiter("Bob"))
    await send(rocketmq, "Meals", b'{"name":"pizza"}')
    async with router:
        assert await bodies(rocketmq, "Served", 2) == [b'"Ada: pizza"'] * 2


@AT_ONCE
async def test_a_handler_that_raises_has_its_message_retried(rocketmq: RocketMQ) -> None:
    router, tries = Router("shop"), []

    @router.subscriber("Orders", group="cooks", consume_from=FIRST, max_reconsume_times=2)
    @router.publisher("Meals")
    async def cook(order: Order, message: MessageExt) -> Meal:
        tries.append((order.dish, message.reconsume_times))
        if order.dish == "stone":
            raise ValueError("not edible")
        if message.reconsume_times == 0:
            raise ReconsumeLater(delay_level=1)
        return Meal(order.dish)

    await send(rocketmq, "Orders", PIZZA, b'{"dish":"stone","price":0}', b"no order at all")
    async with router:
        assert await bodies(rocketmq, "Meals") == [b'{"name":"pizza"}']
        dead = await asyncio.to_thread(rocketmq.wait_for_dead_letters, "cooks", 2)
    assert sorted(letter.body for letter in dead) == [b"no order at all", b'{"dish":"stone","price":0}']
    assert sorted(tries) == [("pizza", 0), ("pizza", 1), ("stone", 0), ("stone", 1), ("stone", 2)]


@pytest.mark.slow
@AT_ONCE
async def test_a_message_whose_result_cannot_be_sent_is_retried(
    rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_consumer, "PERSIST_INTERVAL_MS", 50)
    router, results = Router("shop"), iter([Order("no meal", 1), Meal("pizza")])

    @router.subscriber("Orders", group="cooks", consume_from=FIRST)
    @router.publisher("Meals", value=Meal)
    def cook(order: Order) -> Any:
        return next(results)

    await send(rocketmq, "Orders", PIZZA)
    async with router:
        assert await bodies(rocketmq, "Meals") == [b'{"name":"pizza"}']
        await asyncio.to_thread(rocketmq.wait_until_consumed, "cooks", "%RETRY%cooks")


@AT_ONCE
async def test_a_filter_can_be_an_expression_over_properties(rocketmq: RocketMQ) -> None:
    router, got = Router("shop"), asyncio.Queue[bytes]()

    @router.subscriber("Orders", group="cooks", filter="price > 5", filter_type="SQL92", consume_from=FIRST)
    async def cook(body: bytes) -> None:
        got.put_nowait(body)

    await send(rocketmq, "Orders", b"cheap", properties={"price": "1"})
    await send(rocketmq, "Orders", b"dear", properties={"price": "9"})
    async with router:
        assert await got.get() == b"dear"
    assert got.empty()


async def test_a_publisher_sends_on_its_own_and_a_router_opens_again(rocketmq: RocketMQ) -> None:
    router = Router("shop", namesrv=rocketmq.namesrv)
    meals, notes = router.publisher("Meals", value=Meal, tags="hot"), router.publisher("Notes")
    for _ in range(2):
        async with router:
            await meals.send(Meal("pizza"), keys="order-1", properties={"table": "4"})
            await notes.send("Käse")
            with pytest.raises(InvalidMessage):
                await meals.send("pizza")
            with pytest.raises(ConfigError):
                await notes.send(Meal("pizza"))
            with pytest.raises(ConfigError):
                await router.__aenter__()
    with pytest.raises(ConfigError):
        await notes.send("late")
    (first, _) = rocketmq.messages("Meals")
    assert (first.body, first.tags, first.keys, first.properties["table"]) == (
        b'{"name":"pizza"}', "hot", "order-1", "4",
    )  # fmt: skip
    assert [message.body for message in rocketmq.messages("Notes")] == ["Käse".encode()] * 2


async def test_a_router_that_cannot_open_is_closed(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """The second subscriber fails: its offset file is damaged."""
    router = Router("shop", instance=lambda: ClientInstance(client_id="member"))
    notes = router.publisher("Notes")

    @router.subscriber("Orders", group="cooks")
    async def cook(order: bytes) -> None:
        raise AssertionError(order)

    @router.subscriber("News", group="readers", message_model=MessageModel.BROADCASTING, offsets_root=tmp_path)
    async def read(news: bytes) -> None:
        raise AssertionError(news)

    damaged = tmp_path / "member" / "readers" / "offsets.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    with pytest.raises(ConfigError):
        await router.__aenter__()
    damaged.unlink()
    async with router:
        await notes.send("fine")
    assert [message.body for message in rocketmq.messages("Notes")] == [b"fine"]


def test_misuse_is_refused_where_it_is_written() -> None:
    router = Router("shop")

    async def nothing() -> None: ...
    async def unknown(order) -> None: ...  # type: ignore[no-untyped-def]
    async def two(order: Order, meal: Meal) -> None: ...
    async def otherwise(order: Order, message: MessageExt[Meal]) -> None: ...
    async def bodies(message: MessageExt[bytes]) -> None: ...
    async def silent(order: Order): ...  # type: ignore[no-untyped-def]
    async def good(order: Order) -> None: ...

    subscriber = router.subscriber("Orders", group="cooks")
    with pytest.raises(ConfigError):
        subscriber(nothing)
    with pytest.raises(ConfigError):
        subscriber(two)
    with pytest.raises(ConfigError):
        subscriber(unknown)
    for handler in (otherwise, bodies):
        with pytest.raises(ConfigError):
            subscriber(handler)
    with pytest.raises(ConfigError):
        router.publisher("Meals")(silent)
    with pytest.raises(ConfigError):
        router.publisher("Meals")(good)
    subscriber(good)
    with pytest.raises(ConfigError):
        router.subscriber("Meals", group="cooks")(good)
    with pytest.raises(InvalidMessage):
        router.subscriber("no topic", group="other")
    with pytest.raises(ConfigError):
        router.subscriber("Orders", group="other", message_model=MessageModel.BROADCASTING)


def test_a_type_that_only_a_function_knows_is_named() -> None:
    class Local: ...

    async def handle(order: Local) -> None: ...

    with pytest.raises(ConfigError):
        Router("shop").subscriber("Orders", group="cooks")(handle)


async def test_every_member_of_a_broadcasting_group_gets_each_message(rocketmq: RocketMQ, tmp_path: Path) -> None:
    got = asyncio.Queue[tuple[str, bytes]]()
    routers = []
    for name in ("a", "b"):
        router = Router(f"shop-{name}", instance=lambda name=name: ClientInstance(client_id=f"member-{name}"))

        @router.subscriber(
            "News", group="readers", message_model=MessageModel.BROADCASTING, consume_from=FIRST, offsets_root=tmp_path
        )
        async def read(body: bytes, name: str = name) -> None:
            got.put_nowait((name, body))

        routers.append(router)
    await send(rocketmq, "News", b"hello")
    async with routers[0], routers[1]:
        assert {await got.get(), await got.get()} == {("a", b"hello"), ("b", b"hello")}


async def test_all_subscribers_stop_at_once_and_running_handlers_end(rocketmq: RocketMQ) -> None:
    """The last subscriber's handler ends when the first has left its group."""
    router, begun, released = Router("shop"), asyncio.Event(), asyncio.Event()

    @router.subscriber("News", group="readers")
    async def read(body: bytes) -> None:
        raise AssertionError(body)

    @router.subscriber("Orders", group="cooks", consume_from=FIRST)
    @router.publisher("Meals")
    async def cook(order: bytes) -> bytes:
        begun.set()
        await released.wait()
        return b"cooked " + order

    async def has_left(group: str) -> bool:
        return await admin.groups.find_consumer_connection(group) is None

    rocketmq.create_topic("News")
    await send(rocketmq, "Orders", b"pizza")
    async with AdminClient(rocketmq.namesrv) as admin:
        await router.__aenter__()
        await begun.wait()
        assert not await has_left("readers")
        closing = asyncio.create_task(router.__aexit__())
        await until(lambda: has_left("readers"))
        released.set()
        await closing
    assert [message.body for message in rocketmq.messages("Meals")] == [b"cooked pizza"]


PROGRAM = """
import logging, sys
from rucola.client import ConsumeFromWhere, Router

logging.basicConfig(level=logging.INFO, format="%(message)s")
router = Router("shop")

@router.subscriber("Orders", group="cooks", consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
@router.publisher("Meals")
def cook(order: str) -> str:
    print("cooking", order, flush=True)
    sys.stdin.readline()
    return f"cooked {order}"

router.run()
print("closed")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_ends_after_its_running_handlers(rocketmq: RocketMQ, number: signal.Signals) -> None:
    rocketmq.send("Orders", b"pizza")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "cooking pizza\n"
    assert "router shop consumes Orders for cooks\n" in process.stderr  # it has opened
    process.send_signal(number)
    output, errors = process.communicate("done\n")
    assert (process.returncode, output) == (0, "closed\n"), errors
    assert "Traceback" not in errors
    assert [message.body for message in rocketmq.messages("Meals")] == [b"cooked pizza"]
    rocketmq.wait_until_consumed("cooks", "Orders")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["-c", PROGRAM], ["-m", "rucola", "router", "run", "kitchen:router"]])
def test_an_interrupt_while_a_router_opens_ends_it_at_once(tmp_path: Path, command: list[str]) -> None:
    """The name server accepts a connection and does not answer."""
    (tmp_path / "kitchen.py").write_text(PROGRAM.partition("router.run()")[0])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        address = "{}:{}".format(*silent.getsockname())
        with subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "ROCKETMQ_NAMESRV": address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert (output, errors) == ("", "")


def test_the_document_of_a_router_knows_pydantics_models_and_codecs() -> None:
    from pydantic import BaseModel

    class Dish(BaseModel):
        name: str

    class Order(BaseModel):
        dish: Dish

    class Codec:
        def encode(self, value: object) -> bytes:
            return b""

        def decode(self, body: bytes) -> object:
            return body

    router = Router("shop")
    router.publisher("Orders", value=Order)
    router.publisher("Meals", value=Codec())
    router.publisher("Raw")
    found = router.asyncapi(version="2")
    assert found["info"] == {"title": "shop", "version": "2"}
    assert found["components"]["schemas"].keys() == {"Order", "Dish"}
    assert found["components"]["schemas"]["Order"]["properties"]["dish"] == {"$ref": "#/components/schemas/Dish"}
    assert found["channels"]["Meals"]["messages"] == {"Codec": {"title": "as Codec encodes it"}}
    assert found["channels"]["Raw"]["messages"]["bytes"]["contentType"] == "application/octet-stream"


def test_types_of_one_name_have_names_and_schemas_of_their_own() -> None:
    from pydantic import BaseModel

    orders = [
        msgspec.defstruct("Order", [("dish", str)], module="kitchen"),
        msgspec.defstruct("Order", [("table", int)], module="hall"),
    ]

    class Order(BaseModel):
        guest: str

    router = Router("shop")
    for topic, value in (
        ("Kitchen", orders[0]), ("Hall", orders[1]), ("Door", Order), ("Archive", orders[0]),
        ("Lists", list[orders[0]]), ("Lists", list[orders[1]]),  # type: ignore[valid-type]
    ):  # fmt: skip
        router.publisher(topic, value=value)
    found = router.asyncapi()
    schemas = found["components"]["schemas"]

    def of(topic: str) -> list[tuple[str, list[str]]]:
        payloads = {name: one["payload"] for name, one in found["channels"][topic]["messages"].items()}
        refs = {name: one.get("$ref") or one["items"]["$ref"] for name, one in payloads.items()}
        return [(name, list(schemas[ref.rpartition("/")[2]]["properties"])) for name, ref in refs.items()]

    assert {topic: of(topic) for topic in found["channels"]} == {
        "Kitchen": [("Order", ["dish"])],
        "Hall": [("Order_2", ["table"])],
        "Door": [("Order_3", ["guest"])],
        "Archive": [("Order", ["dish"])],
        "Lists": [("list", ["dish"]), ("list_2", ["table"])],
    }
    for operation in found["operations"].values():
        (message,) = operation["messages"]
        channel, _, name = message["$ref"].removeprefix("#/channels/").partition("/messages/")
        assert name in found["channels"][channel]["messages"]
