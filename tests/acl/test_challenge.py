"""Signatures of version 2: each is valid once, on one connection, for one request code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rucola.acl.challenge import Challenge
from rucola.acl.credentials import Credentials, credentials_of_file, default_credentials
from rucola.acl.signature import Signer
from rucola.admin import AdminClient
from rucola.client import Message, Producer, PullConsumer
from rucola.domain.topic import TopicConfig
from rucola.errors import BrokerError, ConfigError, RemotingConnectError
from rucola.protocol.access import GetChallengeResponseHeader
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from support.access import ADMIN, guarded_cluster
from support.cluster import Tally
from support.errors import raises
from support.remoting_peers import RawPeer, running_server

KEYS = Credentials("operator", "secret of the operator", signature_version=2)
CONFIG, CHALLENGE = RequestCode.GET_BROKER_CONFIG, RequestCode.GET_CHALLENGE

fields = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=4)


@given(fields, st.binary(max_size=8), st.integers(0, 400), fields, st.binary(max_size=8), st.integers(0, 400))
def test_what_is_signed_is_admitted_once_and_nothing_else(
    sent: dict[str, str], body: bytes, code: int, other: dict[str, str], other_body: bytes, other_code: int
) -> None:
    """`other` may join and split names and values as it likes."""
    client, server, elsewhere = Challenge("one"), Challenge("one"), Challenge("two")
    signer = Signer("secret")
    client.sign(signer, code, sent, body)
    assume((other, other_body, other_code) != ({k: v for k, v in sent.items() if "Sig" not in k}, body, code))
    forged = other | {name: sent[name] for name in ("Signature", "SignatureNumber")}
    assert not server.admits(signer, other_code, forged, other_body)
    assert not elsewhere.admits(signer, code, sent, body)
    assert not server.admits(Signer("other"), code, sent, body)
    assert server.admits(signer, code, sent, body)
    assert not server.admits(signer, code, sent, body)
    captured = dict(sent)
    client.sign(signer, code, sent, body)
    assert server.admits(signer, code, sent, body)
    assert not server.admits(signer, code, captured, body)


def test_a_field_cannot_move_into_the_body() -> None:
    client, signer, sent = Challenge("one"), Signer("secret"), {"a": "1", "z": "2"}
    client.sign(signer, 1, sent, b"")
    last = b"\0\0\0\1z\0\0\0\x012"
    forged = {name: value for name, value in sent.items() if name != "z"}
    assert not Challenge("one").admits(signer, 1, forged, last)


@pytest.mark.parametrize("number", ["", "0", "-1", "x", "1" * 19, "¹"])
def test_a_number_is_a_positive_number(number: str) -> None:
    signer, sent = Signer("secret"), {"a": "1"}
    Challenge("one").sign(signer, 1, sent, b"")
    assert not Challenge("one").admits(signer, 1, sent | {"SignatureNumber": number}, b"")


def challenged(peer_answer: RemotingCommand) -> Challenge:
    return Challenge(peer_answer.decode_header(GetChallengeResponseHeader).challenge)


def frame(code: int, challenge: Challenge) -> bytes:
    request = RemotingCommand.request(code)
    request.ext = {}
    KEYS.sign(request.ext, b"", code, challenge)
    return request.encode()


async def test_a_captured_request_is_of_no_use(tmp_path: Path) -> None:
    """Neither again, nor on another connection, nor under another code, nor at another server."""
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker()
        other = await cluster.start_broker("other", name="broker-b")
        ports = [one.config.listen_port for one in (broker, broker, other)]
        victim, thief, elsewhere = [await RawPeer.at(port) for port in ports]

        async def codes(peer: RawPeer, *frames: bytes) -> list[int]:
            await peer.send(b"".join(frames))
            return [answer.code for answer in await peer.commands(len(frames))]

        hello = frame(CHALLENGE, Challenge())
        await victim.send(hello)
        challenge = challenged((await victim.commands(1))[0])
        captured = frame(CONFIG, challenge)
        assert await codes(victim, captured, captured) == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]
        later, last = frame(CONFIG, challenge), frame(CONFIG, challenge)
        assert await codes(victim, last, later) == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]
        # Anyone can repeat the first request, and gets a challenge that signs nothing.
        for peer in (thief, elsewhere):
            assert await codes(peer, captured, hello, captured) == [
                ResponseCode.NO_PERMISSION,
                ResponseCode.SUCCESS,
                ResponseCode.NO_PERMISSION,
            ]
        for code, known in ((CHALLENGE, hello), (CONFIG, captured)):
            changed = known.replace(b'"code":%d,' % code, b'"code":%5d,' % RequestCode.GET_BROKER_RUNTIME_INFO)
            head = len(changed) - 4, len(changed) - 8  # these requests have no body
            changed = b"".join(size.to_bytes(4, "big") for size in head) + changed[8:]
            other_thief = await RawPeer.at(ports[0])
            assert await codes(other_thief, changed) == [ResponseCode.NO_PERMISSION]
            await other_thief.close()
        for peer in (victim, thief, elsewhere):
            await peer.close()


async def test_a_request_signed_for_no_challenge_is_refused(tmp_path: Path) -> None:
    """Whoever has it could send it on every connection to every server."""
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker()
        unchallenged = Challenge()
        requests = [frame(code, unchallenged) for code in (CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, CHALLENGE)]
        for _ in range(2):
            thief = await RawPeer.at(broker.config.listen_port)
            await thief.send(b"".join(requests))
            answers = await thief.commands(3)
            assert [answer.code for answer in answers] == [
                ResponseCode.NO_PERMISSION,
                ResponseCode.NO_PERMISSION,
                ResponseCode.SUCCESS,
            ]
            await thief.close()


@pytest.mark.parametrize("challenge", [None, "", "0123456789abcdef0123456789abcde"])
async def test_a_client_signs_nothing_for_a_challenge_that_can_be_guessed(challenge: str | None) -> None:
    received: Tally[RemotingCommand] = Tally()

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        received.add(command)
        response = command.response(ResponseCode.SUCCESS)
        response.ext = {} if challenge is None else {"challenge": challenge}
        return response

    async with running_server({CHALLENGE: answer, CONFIG: answer}) as server:
        client = RemotingClient(credentials=KEYS)
        for _ in range(2):
            with pytest.raises(RemotingConnectError):
                await client.invoke(f"127.0.0.1:{server.port}", RemotingCommand.request(CONFIG))
        assert [command.code for command in received.items] == [CHALLENGE] * 2
        await client.close()


async def test_clients_and_brokers_sign_with_version_2(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        with (cluster.home / "conf" / "tools.yml").open("a") as file:
            file.write("signatureVersion: 2\n")
        broker = await cluster.start_broker()
        async with AdminClient(cluster.namesrv, credentials=KEYS) as admin:
            await admin.topics.create_or_update(broker.address, TopicConfig(topic_name="Orders"))
            assert "broker-a" in (await admin.cluster.info()).broker_addr_table
        async with Producer("p", cluster.namesrv, credentials=KEYS) as producer:
            for number in range(3):
                await producer.send(Message("Orders", b"%d" % number), (await producer.queues("Orders"))[0])
        async with PullConsumer("g", cluster.namesrv, credentials=ADMIN) as consumer:
            pulled = await consumer.pull((await consumer.queues("Orders"))[0], 0)
        assert [message.body for message in pulled.messages] == [b"0", b"1", b"2"]
        wrong = RemotingClient(credentials=Credentials("operator", "not the secret", signature_version=2))
        with pytest.raises(BrokerError) as denied:
            await wrong.invoke(broker.address, RemotingCommand.request(CONFIG))
        assert denied.value.code == ResponseCode.NO_PERMISSION
        await wrong.close()


async def test_a_server_that_does_not_know_version_2_is_named() -> None:
    async with running_server({}) as server:
        client = RemotingClient(credentials=KEYS)
        with raises(RemotingConnectError, subject=f"127.0.0.1:{server.port}"):
            await client.connect(f"127.0.0.1:{server.port}")
        await client.close()


def test_a_file_or_the_environment_chooses_the_version(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: a\nsecretKey: s\nsignatureVersion: 2\n")
    both = {"ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "s"}
    two = Credentials("a", "s", signature_version=2)
    assert credentials_of_file(path) == default_credentials(both | {"ROCKETMQ_SIGNATURE_VERSION": "2"}) == two
    for text in ("3", "two"):
        path.write_text(f"accessKey: a\nsecretKey: s\nsignatureVersion: {text}\n")
        with raises(ConfigError, subject="signatureVersion"):
            credentials_of_file(path)
