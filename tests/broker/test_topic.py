"""Topics and queues as operators see them."""

from __future__ import annotations

from pathlib import Path

from broker.test_broker import Peer, with_broker
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.query import QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody


def test_units_of_a_queue(tmp_path: Path) -> None:
    """As many as are asked for and there; none for a count of 0 or less; no body where no unit begins."""

    async def talk(peer: Peer) -> None:
        for _ in range(3):
            await peer.send(properties="TAGS\x01a\x02")

        async def units(index: int, count: int) -> list[int] | None:
            header = QueryConsumeQueueRequestHeader(topic="T", queue_id=0, index=index, count=count)
            answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header)
            assert answer.code == ResponseCode.SUCCESS
            if not answer.body:
                assert answer.remark == f"Index {index} of 0@T is not exist!"
                return None
            body = decode_body(QueryConsumeQueueResponseBody, answer.body)
            assert (body.min_queue_index, body.max_queue_index) == (0, 3)
            assert all(unit.physic_size > 0 for unit in body.queue_data)
            return [unit.tags_code for unit in body.queue_data]

        assert await units(0, 10) == [97, 97, 97]
        assert await units(2, 10) == [97]
        assert await units(1, 1) == [97]
        for count in (0, -1, -5, -(2**31)):
            assert await units(0, count) == []
        for index in (-1, 3, 2**62):
            assert await units(index, 1) is None

    with_broker(tmp_path, talk)
