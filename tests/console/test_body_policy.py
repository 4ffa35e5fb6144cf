"""Bodies that an account does not see: on pages, in the API, in scans, in dead letters, and as tools."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rucola.admin.commands import CATALOGUE
from rucola.admin.commands.authorization import Account, parse_grants
from rucola.client import Producer
from rucola.console.body_policy import BodyPolicy
from rucola.errors import ConfigError
from rucola.message import Message
from support.console import add_dead_letters, live_cluster, visitor
from support.errors import raises
from support.waiting import until

SECRET = "4111111111111111"


def policy(path: Path, text: str) -> Path:
    (path / "bodies.properties").write_text(text)
    return path / "bodies.properties"


async def test_a_body_is_hidden_wherever_it_would_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = Account("local", parse_grants("viewer"))
    monkeypatch.setattr("rucola.console.accounts.LOCAL", viewer)
    async with live_cluster(tmp_path) as running:
        async with Producer("shop", running.namesrv) as producer:
            sent = await producer.send(Message("Orders", SECRET.encode(), keys="k", tags="paid"))
        (letter,) = await add_dead_letters(running, {"no card": 1})
        name, queue_id = sent.queue.broker_name, str(sent.queue.queue_id)
        asked = {
            "queryMsgByKey": {"topic": "Orders", "key": "k"},
            "queryMsgById": {"msg_ids": sent.offset_msg_id},
            "queryMsgByUniqueKey": {"topic": "Orders", "unique_key": sent.msg_id},
            "queryMsgByOffset": {"topic": "Orders", "broker_name": name, "queue_id": queue_id,
                                 "queue_offset": str(sent.queue_offset)},
            "printMsg": {"topic": "Orders", "expression": "paid"},
            "printMsgByQueue": {"topic": "Orders", "broker_name": name, "queue_id": queue_id, "expression": "paid",
                                "with_messages": "true", "with_body": "true"},
            "consumeMessage": {"topic": "Orders"},
            "printDlq": {"group": "billing"},
        }  # fmt: skip
        assert asked.keys() == {one.name for one in CATALOGUE.values() if one.shows_bodies}
        for roles, is_hidden in (("Order*=operator\n%DLQ%billing=viewer\n*=admin", True), ("Order*=viewer", False)):
            async with visitor(running.namesrv, body_roles=policy(tmp_path, roles)) as console:
                for command, given in asked.items():
                    found = (await console.get(f"/api/v1/{command}?{urlencode(given)}")).json()
                    shown = json.dumps(found["result"])
                    wanted = "dead" if command == "printDlq" else SECRET
                    assert (wanted in shown.replace("dead letters", ""), "bodyHidden" in shown) == (
                        not is_hidden, is_hidden
                    ), command  # fmt: skip
                    page = await console.text(f"/run/{command}?{urlencode(given)}")
                    assert not (SECRET in page and is_hidden), command
                page = await console.text(f"/message?id={sent.offset_msg_id}")
                assert (SECRET in page, "hidden: bodies of topic Orders" in page) == (not is_hidden, is_hidden)
                by_letter = await console.text(f"/message?id={letter.offset_msg_id}")
                assert ("hidden: bodies of topic Orders" in by_letter) == is_hidden, "where the dead letter came from"
                for question, hits in ((f"text={SECRET}", 0), ("text=paid", 1)):
                    path = f"/scan?topic=Orders&{question}"

                    async def has_ended(path: str = path) -> bool:
                        return "Reading" not in await console.text(path)

                    await until(has_ended)
                    scanned = await console.text(path)
                    wanted_hits = hits if is_hidden else 1
                    assert scanned.count(sent.msg_id) == wanted_hits, "a search would tell what the body is"
                    assert not (is_hidden and SECRET in scanned.replace(f"Text {SECRET}", ""))


def test_a_policy_that_is_wrong_is_refused(tmp_path: Path) -> None:
    for text in ("Orders=all", "a*b=admin"):
        with raises(ConfigError, subject=text.partition("=")[0]):
            BodyPolicy(policy(tmp_path, text))
    first = BodyPolicy(policy(tmp_path, "Orders=viewer\nOrd*=admin"))
    eve = Account("eve", parse_grants("operator Topic:Ord*"))
    assert [bool(first.hides_topic(eve, topic)) for topic in ("Orders", "Orders2", "Other")] == [False, True, False]
