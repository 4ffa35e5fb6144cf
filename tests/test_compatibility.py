"""docs/compatibility.md says what is: the servers and a client are asked every request code there is."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import pytest

from rucola.client.instance import ClientInstance
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline
from rucola.remoting.server import RemotingServer
from support.cluster import HOST, cluster
from support.compatibility import rows

TIMEOUT_MS = 30_000
UNKNOWN = 9999


async def answered(connection: Connection) -> set[int]:
    """The codes that the peer does not answer with REQUEST_CODE_NOT_SUPPORTED.

    Every request is empty, so most are refused; who refuses them names the request or what is missing, and shows
    nothing of its inside. Some have no answer at all. Since unknown codes are answered at once and in order, all of
    them have been when the last is.
    """
    answers = {code: connection.post(RemotingCommand.request(code)) for code in RequestCode}
    assert await refused(connection.request(RemotingCommand.request(UNKNOWN), Deadline(TIMEOUT_MS)))
    for answer in answers.values():
        if answer.done():
            remark = answer.result().remark or ""
            assert "Traceback" not in remark
            assert "failed inside" not in remark
    return {int(code) for code, answer in answers.items() if not (answer.done() and await refused(answer))}


async def refused(answer: Awaitable[RemotingCommand]) -> bool:
    return (await answer).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def said_of(who: str) -> set[int]:
    return {row.code for row in rows() if row.is_answered_by(who)}


def test_the_table_has_every_code_once_and_says_why_not() -> None:
    table = rows()
    assert [(row.code, row.name) for row in table] == [(int(code), code.name) for code in sorted(RequestCode, key=int)]
    assert [row for row in table if not row.is_answered and not row.note] == []
    assert {who for row in table for who in row.asked_of} == {"broker", "name server", "client", "nobody"}


@pytest.mark.parametrize("who", ["broker", "name server"])
async def test_servers_answer_what_the_table_says(tmp_path: Path, who: str) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        address = broker.address if who == "broker" else running.namesrv
        assert await answered(await running.remoting.connect(address)) == said_of(who)


async def test_clients_answer_what_the_table_says() -> None:
    connections: list[Connection] = []
    server = RemotingServer(HOST, 0, {}, on_open=connections.append)
    await server.start()
    async with ClientInstance(f"{HOST}:{server.port}") as client:
        await client.remoting.invoke(f"{HOST}:{server.port}", RemotingCommand.request(UNKNOWN))
        assert await answered(connections[0]) == said_of("client")
    await server.stop()
