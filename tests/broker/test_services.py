"""The services of a broker, called with domain values alone, as adapters of any protocol call them."""

from pathlib import Path

import pytest

from rucola.access import Caller, Reason, Refused
from rucola.broker.delivery.transactions import TransactionEnd
from rucola.broker.services.requests import FetchRequest, PublishRequest, RetryRequest
from rucola.broker.services.results import Fetched, Published, Waiting
from rucola.message import MessageExt, properties, sysflag
from rucola.message.batch import encode_batch
from rucola.message.message import Message
from rucola.message.record import decode_many
from rucola.slices import in_slices, run
from support.broker_peer import broker_peer

CALLER = Caller("10.0.0.7:51234")


async def test_a_message_is_published_fetched_retried_and_committed_without_a_protocol(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        assert peer.broker.parts is not None
        services = peer.broker.parts.services

        async def publish(topic: str = "T", **pairs: str) -> Published:
            request = PublishRequest(topic, 0, b"body", properties.join(pairs), producer_group="p")
            await services.publish.ensure_topic(CALLER, request)
            return services.publish.publish(CALLER, request)

        def fetch(topic: str, queue_offset: int, wait_ms: int | None = None) -> Fetched | Waiting:
            request = FetchRequest("g", topic, 0, queue_offset, 32, wait_ms=wait_ms, expression="*")
            return services.fetch.fetch(CALLER, request)

        def fetched(topic: str, queue_offset: int) -> list[MessageExt]:
            found = fetch(topic, queue_offset)
            assert isinstance(found, Fetched)
            return decode_many(found.records)

        # 1. One message, and a batch.
        with pytest.raises(Refused) as refusal:
            services.publish.publish(CALLER, PublishRequest("T", 0, b"body"))
        assert refusal.value.reason is Reason.TOPIC_NOT_FOUND
        published = await publish(KEYS="k")
        body = encode_batch([Message("T", b"1"), Message("T", b"2")])
        batch = run(services.publish.publish_batch(CALLER, PublishRequest("T", 0, body)))
        assert (published.queue_offset, batch.queue_offset, len(batch.physical_offsets)) == (0, 1, 2)
        assert [(message.body, message.keys) for message in fetched("T", 0)] == [
            (b"body", "k"), (b"1", None), (b"2", None),
        ]  # fmt: skip
        assert isinstance(fetch("T", 3, wait_ms=1000), Waiting)

        # 2. A dead letter.
        put = await services.retry.retry(CALLER, RetryRequest("g", published.physical_offset, delay_level=-1))
        put()
        services.offsets.commit("g", "T", 0, 3)
        (dead,) = fetched("%DLQ%g", 0)
        assert (dead.body, dead.properties[properties.RETRY_TOPIC]) == (b"body", "T")

        # 3. A transaction.
        half = await publish(TRAN_MSG="true")
        assert fetched("T", 3) == []
        end = TransactionEnd("p", half.queue_offset, half.physical_offset, sysflag.TRANSACTION_COMMIT)
        assert services.transactions.end(CALLER, end)
        assert [message.body for message in fetched("T", 3)] == [b"body"]


async def test_a_large_batch_is_published_in_steps(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        assert peer.broker.parts is not None
        service = peer.broker.parts.services.publish
        request = PublishRequest("T", -1, encode_batch([Message("T", b"%d" % number) for number in range(1100)]))
        await service.ensure_topic(CALLER, request)
        steps = service.publish_batch(CALLER, request)
        next(steps)
        published = await in_slices(steps)
        assert len(published.physical_offsets) == 1100
