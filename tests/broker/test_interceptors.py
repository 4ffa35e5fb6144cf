"""Every request of a broker passes the interceptors, and permissions are checked there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.access import Action, Caller, Check, Interceptor, Reason, Refused, Resource
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.remoting.endpoints import Endpoint, processor_table
from rucola.remoting.refusals import RESPONSE_CODES
from rucola.store.config import StoreConfig
from support.cluster import SMALL_FILES
from support.compatibility import rows
from support.interceptors import RefuseAll, requests_of_every_field

BROKER_CODES = [row.code for row in rows() if row.is_answered_by("broker")]
NAMED = {
    RequestCode.SEND_MESSAGE: Resource("1"),
    RequestCode.SEND_MESSAGE_V2: Resource("1"),
    RequestCode.SEND_REPLY_MESSAGE_V2: Resource("1"),
    RequestCode.CONSUMER_SEND_MSG_BACK: Resource("%RETRY%1", "1"),
    RequestCode.PULL_MESSAGE: Resource("1", "1"),
    RequestCode.UPDATE_CONSUMER_OFFSET: Resource("1", "1"),
    RequestCode.HEART_BEAT: Resource(group="consumers"),
    RequestCode.LOCK_BATCH_MQ: Resource("T", "1"),
    RequestCode.UPDATE_AND_CREATE_TOPIC: Resource("1"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Resource(group="1"),
    RequestCode.GET_CONSUME_STATS: Resource("1", "1"),
    RequestCode.UPDATE_BROKER_CONFIG: Resource(),
}


def broker_with(path: Path, *interceptors: Interceptor) -> Broker:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="broker-a", broker_ip1="127.0.0.1")
    return Broker(config, StoreConfig(store_path_root_dir=path, **SMALL_FILES), interceptors=interceptors)


async def test_no_request_code_bypasses_the_interceptors(tmp_path: Path) -> None:
    """Neither with a request that can be decoded nor with an empty one."""
    refusing = RefuseAll()
    async with broker_with(tmp_path, refusing) as broker:
        client = RemotingClient()
        for code in BROKER_CODES:
            for request in (requests_of_every_field(code), RemotingCommand.request(code)):
                seen = len(refusing.seen)
                answer = await client.invoke(broker.address, request)
                assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "refused by the test"), code
                assert len(refusing.seen) == seen + 1, code
        await client.close()


async def test_interceptors_see_caller_action_and_resource(tmp_path: Path) -> None:
    refusing = RefuseAll()
    async with broker_with(tmp_path, refusing) as broker:
        client = RemotingClient()
        for code, resource in NAMED.items():
            await client.invoke(broker.address, requests_of_every_field(code))
            caller, _, seen = refusing.seen[-1]
            assert seen == resource, code
            assert caller.address.startswith("127.0.0.1:")
        await client.close()


async def test_requests_that_nothing_refuses_reach_their_services(tmp_path: Path) -> None:
    class Seen:
        def __init__(self) -> None:
            self.actions: list[Action] = []

        def check_for(self, action: Action) -> Check | None:
            return lambda caller, resource: self.actions.append(action)

    seen = Seen()
    async with broker_with(tmp_path, seen) as broker:
        client = RemotingClient()
        answer = await client.invoke(broker.address, RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
        assert answer.code == ResponseCode.SUCCESS
        await client.close()
    assert seen.actions == [Action.QUERY]


def test_a_request_code_has_one_endpoint() -> None:
    endpoint = Endpoint(RequestCode.PULL_MESSAGE, Action.FETCH, lambda request: None)
    with pytest.raises(ValueError, match="request code 11 has two endpoints"):
        processor_table([endpoint, endpoint], [])


def test_every_reason_has_a_response_code() -> None:
    assert RESPONSE_CODES.keys() == set(Reason)


def test_a_refusal_of_the_first_interceptor_ends_the_request() -> None:
    called = []

    class Second:
        def check_for(self, action: Action) -> Check | None:
            return lambda caller, resource: called.append(resource)

    endpoint = Endpoint(RequestCode.GET_ALL_TOPIC_CONFIG, Action.QUERY, lambda request: called.append(request))
    process = endpoint.compile([RefuseAll(), Second()])
    connection = type("Peer", (), {"caller": Caller("127.0.0.1:1")})()
    with pytest.raises(Refused):
        process(connection, RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert called == []
