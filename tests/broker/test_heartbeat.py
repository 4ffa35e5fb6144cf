"""Heartbeats and goodbyes that are unusual, as Apache's broker takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.domain.client import ConsumerConnection, ConsumerData, HeartbeatData
from rucola.domain.group import SubscriptionGroupWrapper
from rucola.domain.subscription import SubscriptionData, subscription
from rucola.message.record import decode_many
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.connections import GetConsumerConnectionListRequestHeader
from rucola.protocol.heartbeat import UnregisterClientRequestHeader
from support.broker_peer import broker_peer


def sql(expression: str, version: int) -> SubscriptionData:
    return subscription("T", expression, "SQL92", version)


@pytest.mark.parametrize(
    ("subscriptions", "kept", "wanted"),
    [
        ([subscription("T", "a", version=1), subscription("T", "b", version=1)], "a", [b"a"]),
        ([subscription("T", "a", version=1), subscription("T", "b", version=2)], "b", [b"b"]),
        ([sql("n = 2", 1), subscription("T", "a", version=1)], "n = 2", [b"b"]),
        ([subscription("T", "a", version=1), sql("n = 2", 1)], "a", [b"a"]),
        ([sql("n = 1", 1), sql("n = 2", 2)], "n = 2", [b"b"]),
    ],
)
async def test_the_newer_of_two_subscriptions_to_a_topic_counts(
    tmp_path: Path, subscriptions: list[SubscriptionData], kept: str, wanted: list[bytes]
) -> None:
    """Of equally new ones the first, for what the group is said to want and for what it gets alike."""

    async with broker_peer(tmp_path, enable_property_filter=True) as peer:
        for number, tag in enumerate("ab", 1):
            await peer.send(tag.encode(), properties=f"TAGS\x01{tag}\x02n\x01{number}\x02")
        group = ConsumerData(group_name="g", subscription_data_set=subscriptions)
        beat = encode_body(HeartbeatData(client_id="c", consumer_data_set=[group]))
        assert (await peer.ask(RequestCode.HEART_BEAT, body=beat)).code == ResponseCode.SUCCESS
        header = GetConsumerConnectionListRequestHeader(consumer_group="g")
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        assert decode_body(ConsumerConnection, answer.body).subscription_table["T"].sub_string == kept
        pulled = await peer.pull(sys_flag=0)
        assert pulled.code == ResponseCode.SUCCESS, pulled.remark
        assert [message.body for message in decode_many(pulled.body)] == wanted


@pytest.mark.parametrize("creates", [True, False])
async def test_unregistering_an_unknown_group_succeeds(tmp_path: Path, creates: bool) -> None:
    """It makes the group if groups are made, as every other request that names one; it is answered SUCCESS."""

    async with broker_peer(tmp_path, auto_create_subscription_group=creates) as peer:
        header = UnregisterClientRequestHeader(client_id="c", producer_group="p", consumer_group="unknown")
        assert (await peer.ask(RequestCode.UNREGISTER_CLIENT, header)).code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        groups = decode_body(SubscriptionGroupWrapper, answer.body).subscription_group_table
        assert ("unknown" in groups) is creates


@pytest.mark.parametrize("member", ["consumeType", "messageModel", "consumeFromWhere"])
@pytest.mark.parametrize("ordinal", [9, -1])
async def test_an_unknown_enum_ordinal_is_refused(tmp_path: Path, member: str, ordinal: int) -> None:
    async with broker_peer(tmp_path) as peer:
        beat = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"g","{member}":{ordinal}}}]}}'
        answer = await peer.ask(RequestCode.HEART_BEAT, body=beat.encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"{ordinal} is none of 0 to" in (answer.remark or "")
        header = GetConsumerConnectionListRequestHeader(consumer_group="g")
        assert (await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)).code == 206
