"""Light message queues: messages for them, their topics, groups and offsets, on a store that Apache's broker wrote."""

from __future__ import annotations

from pathlib import Path

from rucola import fastjson
from rucola.message import properties
from rucola.message.record import decode_many
from rucola.protocol.codes import ResponseCode
from support.apache_stores import settings, with_lmq
from support.broker_peer import broker_peer
from support.peer import Peer
from support.waiting import until


def named(names: str, **more: str) -> str:
    return properties.join({"INNER_MULTI_DISPATCH": names, **more}).decode()


async def bodies(peer: Peer, topic: str, queue_offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        answer = await peer.pull(consumer_group="%LMQ%g", topic=topic, queue_offset=queue_offset + len(found))
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [message.body for message in decode_many(answer.body)]


async def test_messages_are_dispatched_to_light_message_queues_and_groups_consume_them(tmp_path: Path) -> None:
    root = with_lmq(tmp_path)
    apaches = fastjson.loads((root / "config" / "lmqConsumerOffset.json").read_bytes())
    sizes = {"mapped_file_size_commit_log": settings(root).mapped_file_size_commit_log}
    sizes |= {"mapped_file_size_consume_queue": 6_000_000, "max_hash_slot_num": 5_000_000, "max_index_num": 20_000_000}
    lmq = sizes | {"enable_lmq": True, "enable_multi_dispatch": True, "max_lmq_consume_queue_num": 3}
    group = {"group": "%LMQ%g", "topic": "%LMQ%a"}
    async with broker_peer(root, lmq, auto_create_subscription_group=False) as peer:
        assert len(await bodies(peer, "%LMQ%a")) == 50
        for body, text in (
            (b"one", named("%LMQ%a,%LMQ%new", INNER_MULTI_QUEUE_OFFSET="9,9")),
            (b"delayed", named("%LMQ%b", DELAY="1")),
        ):
            assert (await peer.send(body, topic="S_lmq", properties=text)).code == ResponseCode.SUCCESS
        assert await bodies(peer, "%LMQ%a", 50) == [b"one"]
        assert await bodies(peer, "%LMQ%new") == [b"one"]
        # What is refused: another topic, which nobody has checked the permission for; one queue too many.
        for text in (named("S_tag"), named("%LMQ%a,S tag"), named("%LMQ%more")):
            assert (await peer.send(topic="S_lmq", properties=text)).code != ResponseCode.SUCCESS
        # A delayed message is in the queue when it is delivered, and once.
        delivered: list[bytes] = []

        async def is_delivered() -> bool:
            delivered[:] = await bodies(peer, "%LMQ%b", 25)
            return bool(delivered)

        await until(is_delivered)
        assert delivered == [b"delayed"]
        # Offsets: of a group of light message queues, and those that Apache's broker has left.
        assert (await peer.commit(51, **group)).code == ResponseCode.SUCCESS
        assert (await peer.committed(**group), await peer.committed("CG_SQL", "S_tag", 3)) == (51, 51)
    written = fastjson.loads((root / "config" / "lmqConsumerOffset.json").read_bytes())
    assert written["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 51}
    assert {name: written["offsetTable"].get(name) for name in apaches["offsetTable"]} == apaches["offsetTable"]
    async with broker_peer(root, lmq) as peer:
        assert await peer.committed(**group) == 51
