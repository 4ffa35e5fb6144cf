"""Every request of a name server passes the interceptors."""

from __future__ import annotations

from rucola.access import Resource
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from support.compatibility import rows
from support.interceptors import RefuseAll, requests_of_every_field

CODES = [row.code for row in rows() if row.is_answered_by("name server")]


async def test_no_request_code_bypasses_the_interceptors() -> None:
    refusing = RefuseAll()
    async with Namesrv("127.0.0.1", 0, interceptors=[refusing]) as namesrv:
        client = RemotingClient()
        for code in CODES:
            for request in (requests_of_every_field(code), RemotingCommand.request(code)):
                seen = len(refusing.seen)
                answer = await client.invoke(f"127.0.0.1:{namesrv.port}", request)
                assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "refused by the test"), code
                assert len(refusing.seen) == seen + 1, code
        await client.close()


async def test_a_route_request_names_its_topic() -> None:
    refusing = RefuseAll()
    async with Namesrv("127.0.0.1", 0, interceptors=[refusing]) as namesrv:
        client = RemotingClient()
        request = requests_of_every_field(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await client.invoke(f"127.0.0.1:{namesrv.port}", request)
        assert refusing.seen[-1][2] == Resource("1")
        await client.close()
