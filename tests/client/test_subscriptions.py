"""What members want: filters by property, and a warning where members of a group want different things."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.client import ClientInstance, Message, Producer, PushConsumer
from rucola.client.consumer.subscription_consistency import SubscriptionCheck
from rucola.domain.subscription import subscription
from rucola.errors import InvalidExpression
from support.cluster import cluster
from support.consumers import FIRST, cluster_with_topic, consumer_of, take
from support.waiting import until


async def test_members_with_equal_subscriptions_log_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        cluster_with_topic(tmp_path) as (running, broker),
        consumer_of(running) as one,
        consumer_of(running) as two,
    ):
        await until(lambda: len(one.queues) == len(two.queues) == 2)
        for member in (one, two):
            subscriptions = {data.topic: data for data in member.operations.consumer_data().subscription_data_set}
            await SubscriptionCheck("c", member.instance, subscriptions).run(broker.address)
    assert "differently" not in caplog.text


async def test_a_member_with_another_subscription_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_with_topic(tmp_path) as (running, _), consumer_of(running, expression="A") as one:
        async with consumer_of(running, expression="B") as two:
            one.members_changed()
            await until(lambda: "subscribe differently" in caplog.text)
        (line,) = {record.getMessage() for record in caplog.records if "differently" in record.getMessage()}
        assert "topic T here with 'A' and elsewhere with 'B'" in line
        assert one.instance.client_id in line
        assert two.instance.client_id in line


async def test_each_difference_is_logged_once_and_again_after_it_was_resolved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_with_topic(tmp_path) as (running, broker), ClientInstance(running.namesrv) as instance:
        async with consumer_of(running):
            own = {"%RETRY%c": subscription("%RETRY%c", "*"), "U": subscription("U", "*")}
            watch = SubscriptionCheck("c", instance, own)
            for _ in range(2):
                await watch.run(broker.address)
            assert caplog.text.count("topic T only elsewhere; topic U only here") == 1
            own |= {"T": subscription("T", "*")}
            del own["U"]
            await watch.run(broker.address)
            del own["T"]
            await watch.run(broker.address)
            assert caplog.text.count("topic T only elsewhere") == 2
        await watch.run(broker.address)  # nobody is there: no more to say
        assert caplog.text.count("differently") == 2


async def test_a_consumer_filters_by_properties(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(enable_property_filter=True), "T", queues=2)
        async with Producer("p", running.namesrv) as producer:
            for weight in range(12):
                await producer.send(Message("T", b"%d" % weight, properties={"weight": str(weight)}))
        consumer = PushConsumer("c", running.namesrv, consume_from=FIRST)
        consumer.subscribe("T", "weight BETWEEN 3 AND 5 OR weight = 9", "SQL92")
        async with consumer:
            assert sorted(await take(consumer, 4)) == [3, 4, 5, 9]
            assert [message async for message in consumer.messages(idle_timeout_ms=50)] == []


def test_an_invalid_filter_is_refused_at_once() -> None:
    with pytest.raises(InvalidExpression):
        PushConsumer("c", "127.0.0.1:1").subscribe("T", "weight >", "SQL92")
