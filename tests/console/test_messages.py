"""Search, scans and the page of one message."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from rucola.client import Producer, PushConsumer
from rucola.client.trace import MessageTrace
from rucola.console.bodies import MAX_BYTES, is_cut, shown_body
from rucola.console.scans import Question
from rucola.message import Message, MessageExt
from support.cluster import Tally
from support.console import Visitor, field, live_cluster, visitor
from support.waiting import until

HOSTILE = "<script>alert(1)</script>\u202e"


async def scanned(console: Visitor, path: str, *, until_text: str = "messages were read.") -> str:
    """The page of a scan that has ended."""
    texts = [""]

    async def has_ended() -> bool:
        texts[0] = await console.text(path)
        return "Reading" not in texts[0]

    await until(has_ended)
    assert until_text in texts[0]
    return texts[0]


async def test_one_box_finds_out_what_a_string_is(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        async with Producer("shop", running.namesrv) as producer:
            sent = await producer.send(Message("Orders", b"{}", keys="k-1 k-2", tags="paid"))
            for text, wanted in (
                ("orders", "Topic: Orders"),
                ("bill", "Group: billing"),
                ("broker-b", "Broker: broker-b"),
                (producer.instance.client_id, f"Producer: {producer.instance.client_id} (shop)"),
                ("k-2", f"{sent.msg_id} Orders k-1 k-2 paid 2 log"),
                (sent.msg_id, f"{sent.msg_id} Orders"),
                (sent.offset_msg_id, f"{sent.msg_id} Orders"),
            ):
                assert wanted in await console.text(f"/search?q={quote(text)}"), text
        nothing = await console.text(f"/search?q={quote(HOSTILE)}")
        assert "No message with this key or id" in nothing
        assert "No message with this key" in await console.text("/search?q=k-1&topic=TBW102")
        assert await console.console.audit.entries() == [], "no body was shown"


async def test_a_scan_finds_text_and_properties_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        async with Producer("shop", running.namesrv) as producer:
            await producer.send(Message("Orders", HOSTILE.encode(), properties={"amount": "120"}))
        text = await scanned(console, "/scan?topic=Orders&text=order+7")
        assert "41 of about 41 messages read" in text
        assert len(re.findall("order 7", text)) == 2, "the question, and the only message"
        text = await scanned(console, f"/scan?topic=Orders&filter={quote('amount > 100')}")
        assert r"<script>alert(1)</script>\u202e" in text
        page = await console.get(f"/scan?topic=Orders&filter={quote('amount > 100')}")
        assert "<script>alert" not in page.text
        assert (await console.get("/scan?topic=Orders&filter=%3D")).status_code == 400
        assert (await console.get("/scan?topic=Orders&begin=never")).status_code == 400
        assert "No message has been found" in await scanned(console, "/scan?topic=Orders&end=1000")
        assert "could not be read" in await scanned(console, "/scan?topic=none", until_text="Some messages")

        monkeypatch.setattr("rucola.console.scans.MAX_HITS", 3)
        path = "/scan?topic=Orders&begin=1"
        assert "ended at its limit" in await scanned(console, path, until_text="there may be more")
        entries = len(await console.console.audit.entries())
        page = await console.get(path)
        assert len(await console.console.audit.entries()) == entries, "a reload starts nothing"
        fields = {"token": field(page, "token")}
        monkeypatch.setattr("rucola.console.scans.MAX_HITS", 1000)
        for do in ("again", "stop"):
            answer = await console.http.post(console.url(path), data=fields | {"do": do})
            assert answer.headers["location"] == path
        scans = console.console.scans
        scans.start("local", Question("Orders", begin_ms=1))
        scans.stop("local", Question("Orders", begin_ms=1))
        assert "was stopped" in await console.text(path)
        assert len(await console.console.audit.entries()) == entries + 1


async def test_the_page_of_a_message_shows_its_life_and_body(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        async with Producer("shop", running.namesrv) as producer:
            body = msgspec.msgpack.encode({"id": 7, "name": HOSTILE})
            sent = await producer.send(Message("Orders", body, keys=HOSTILE, properties={"p": HOSTILE}))
        path = f"/message?id={sent.offset_msg_id}"
        text = await console.shows(path, "billing NOT_ONLINE 0")
        where = f"queue {sent.queue.queue_id}, offset {sent.queue_offset}"
        assert re.search(rf"born at 127.0.0.1:\d+ .*stored at 127.0.0.1:\d+ ?: Orders {where}", text)
        assert "00000000 82 a2 69 64 07" in text
        assert '"name": "' in await console.text(f"{path}&as=msgpack")
        for form in ("", "text", "hex", "json", "msgpack"):
            page = (await console.get(f"{path}&as={form}")).text
            assert "<script>alert" not in page
            assert "\u202e" not in page
        by_offset = f"/message?topic=Orders&broker={sent.queue.broker_name}&queue={sent.queue.queue_id}&offset="
        assert sent.msg_id in await console.text(f"{by_offset}{sent.queue_offset}")
        for absent in (f"/message?id={sent.msg_id}", "/message?id=x", "/message"):  # a unique id needs its topic
            assert (await console.get(absent)).status_code == 404, absent
        for wrong in (f"{by_offset}999", f"{by_offset}x"):
            assert (await console.get(wrong)).status_code == 400, wrong
        assert sent.offset_msg_id in await console.text(f"/message?topic=Orders&id={sent.msg_id}")
        assert (await console.console.audit.entries())[0].action == f"message id={sent.msg_id} topic=Orders"

        again = await console.get(f"/run/queryMsgById?msg_ids={sent.offset_msg_id}&resend=true")
        fields = {name: field(again, name) for name in ("msg_ids", "resend", "seen", "token")}
        assert (await console.http.post(console.url("/run/queryMsgById"), data=fields)).status_code == 200
        assert "sent again as" in await console.text(path)
        link = re.search(r'href="(/run/queryMsgByUniqueKey[^"]*group=billing[^"]*)"', (await console.get(path)).text)
        assert link
        form = await console.get(unescape(link[1]))
        assert f'name="unique_key" value="{sent.offset_msg_id}"' in form.text


async def test_the_life_has_the_deliveries_that_clients_traced(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running:
        async with MessageTrace(running.namesrv) as trace:
            consumer = PushConsumer("billing", running.namesrv, trace=trace)
            consumer.subscribe("Orders")
            heard: Tally[MessageExt] = Tally()

            async def listen(message: MessageExt) -> None:
                heard.add(message)

            consumer.listen(listen)
            async with consumer:
                (message, *_) = await heard.reach(1)
            await trace.flush()
        async with visitor(running.namesrv) as console:
            text = await console.text(f"/message?id={message.offset_msg_id}")
            assert re.search(r"delivered to 127.0.0.1 of group billing ?: consumed, \d+ ms", text)


def test_bodies_are_shown_in_the_form_that_fits() -> None:
    assert shown_body(b'{"a":[1]}').form == "json"
    assert shown_body(b"[1").form == "text"
    assert shown_body("日本".encode()) == ("text", "日本", "")
    assert shown_body(b"\x1b[2J").form == "hex"
    assert shown_body(b"abc", "json")[::2] == ("text", shown_body(b"abc", "json").error)
    assert shown_body(b"abc", "json").error
    assert shown_body(b"[" * 100_000, "json").error
    large = b"x" * (MAX_BYTES + 1)
    assert is_cut(large, "text")
    assert len(shown_body(large).text) == MAX_BYTES
