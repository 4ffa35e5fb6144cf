"""The pages of dead letters, a backlog's end, and sending dead letters again."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import msgspec

from rucola.admin import AdminClient, OffsetWrapper, dlq_topic
from rucola.console.collector import GroupProgress
from rucola.domain.queue import MessageQueue
from support.console import add_dead_letters, field, live_cluster, text_of, visitor

HOSTILE = "<script>alert(1)</script>"


async def test_dead_letters_are_shown_by_cause_and_sent_again(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        await add_dead_letters(running, {"no card\nat x()": 1, "no card": 1, HOSTILE: 1, "": 1})
        async with visitor(running.namesrv) as console:
            await console.shows("/dead_letters", "billing 4 4 ")
            page = await console.get("/dead_letters?group=billing")
            assert "<script>alert" not in page.text
            text = text_of(page)
            assert "no card Orders paid 2 2 2 0 0 0" in text
            assert f"{HOSTILE} Orders paid 1 1 1 0 0 0" in text
            assert "– Orders paid 1 1 1 0 0 0" in text

            fields = {"group": "billing", "per_second": "100", "only_group": "", "token": field(page, "token")}
            dry = await console.http.post(console.url("/run/redriveDlq"), data=fields | {"dry_run": "true"})
            assert "Orders 4" in text_of(dry)
            assert (await admin.dead_letters.stats("billing")).waiting == 4
            url = console.url("/run/redriveDlq")
            asked = await console.http.post(url, data=fields)
            assert "send the dead letters of group billing again" in text_of(asked)
            done = await console.http.post(url, data=fields | {"seen": field(asked, "seen")})
            assert "Orders 4" in text_of(done)
            await console.shows("/dead_letters", "billing 0 4 ")
            again = await console.get("/dead_letters?group=billing")
            assert "no card Orders paid 0 2 2" in text_of(again)
            dead = re.search(r"/message\?id=(\w+)", again.text)
            assert dead
            letter = await admin.messages.get(dead[1])
            copies = (await admin.messages.query_by_unique_key("Orders", letter.msg_id)).messages
            assert f"re-driven from {dead[1]}" in await console.text(f"/message?id={copies[0].offset_msg_id}")
            assert (await console.get("/dead_letters?group=none")).status_code == 404


async def test_a_dead_letter_is_edited_and_all_are_exported(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        (letter, _) = await add_dead_letters(running, {"=cmd()": 1, "no card": 1})
        async with visitor(running.namesrv) as console:
            page = await console.get(f"/dead_letter?group=billing&id={letter.offset_msg_id}")
            assert re.search(r"<textarea[^>]*>\s*dead</textarea>", page.text)
            fields = {name: field(page, name) for name in ("group", "msg_ids", "token")}
            fields |= {"body": " two\r\nlines ", "only_group": ""}
            url = console.url("/run/redriveDlq")
            asked = await console.http.post(url, data=fields)
            assert "send 1 of the dead letters of group billing again, with another body" in text_of(asked)
            assert r"-p ' two\nlines '" in text_of(asked)
            done = await console.http.post(url, data=fields | {"seen": field(asked, "seen")})
            assert "Orders 1" in text_of(done)
            (copy,) = (await admin.messages.query_by_unique_key("Orders", letter.msg_id)).messages
            assert (copy.body, copy.tags) == (b" two\nlines ", "paid")
            several = await console.http.post(console.url("/api/v1/redriveDlq"), json={"group": "billing", "body": "x"})
            assert several.status_code == 400, "which message gets it?"

            exported = await console.get("/dead_letters/export?group=billing&format=csv")
            header, *rows = csv.reader(io.StringIO(exported.text))
            (first,) = (dict(zip(header, row, strict=True)) for row in rows if row[0] == letter.offset_msg_id)
            assert (first["cause"], first["body"], first["redriven"]) == ("'=cmd()", "dead", "True")
            lines = (await console.get("/dead_letters/export?group=billing")).text.splitlines()
            assert [msgspec.json.decode(line)["originTopic"] for line in lines] == ["Orders", "Orders"]
            of_none = f"/dead_letter?group=none&id={letter.offset_msg_id}"
            assert (await console.get(of_none)).status_code == 404
            assert (await console.get("/dead_letter?group=billing&id=x")).status_code == 400
            assert (await console.get("/dead_letters/export?group=none")).status_code == 404
            actions = [entry.action for entry in await console.console.audit.entries()]
            assert "export dead letters of billing" in actions
            assert f"dead_letter group=billing id={letter.offset_msg_id}" in actions

            await running.register("broker-c", dlq_topic("billing"), "127.0.0.1:1")
            cut = (await console.get("/dead_letters/export?group=billing")).text.splitlines()
            assert ["error" in msgspec.json.decode(line) for line in cut] == [False, False, True], "the rest is missing"


def test_the_end_of_a_backlog_is_estimated_from_its_trend() -> None:
    queues = {MessageQueue("Orders", "broker-a", 0): OffsetWrapper(broker_offset=100, consumer_offset=60)}

    def progress(*trend: tuple[int, int]) -> GroupProgress:
        return GroupProgress(queues=queues, consume_tps=0.0, trend=trend, failures={})

    assert progress((0, 60), (5000, 50)).empty_at_ms(10_000) == 30_000
    assert progress().empty_at_ms(10_000) is None
    assert progress((0, 40)).empty_at_ms(10_000) is None
    assert progress((0, 30)).empty_at_ms(10_000) is None
