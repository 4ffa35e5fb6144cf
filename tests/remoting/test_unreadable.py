"""Frames with unreadable headers: answered if their opaque is readable, on a connection that stays open."""

from __future__ import annotations

import json
import logging
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rucola.errors import RemoteProtocolError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand, SerializeType
from rucola.protocol.frame import MAX_UNREADABLE, FrameDecoder
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from support.examples import examples
from support.remoting_peers import ECHO, HOLD, RawPeer, echo, request, running_server


def frame(header: bytes, serializer: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header), serializer << 24 | len(header)) + header


async def test_an_unreadable_header_is_answered_and_the_connection_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    async with running_server({ECHO: echo}) as server:
        peer = await RawPeer.to(server)
        before, after = request(ECHO, b"before"), request(ECHO, b"after")
        unreadable = [
            frame(b'{"code":"x","opaque":7}'),
            frame(struct.pack(">hBhiii", ECHO, 0, 0, 8, 0, -1), serializer=1),
            frame(b'{"code":"x","opaque":9,"flag":2}'),  # one-way
            frame(b'{"code":"x","opaque":10,"flag":1}'),  # a response to no request
            frame(b"nonsense"),
            frame(b"{}", serializer=3),
            frame(b'{"opaque":11,"language":0}'),  # readable: code 0
        ]
        await peer.send(b"".join([before.encode(), *unreadable, after.encode()]))
        first, json_answer, binary_answer, unsupported, last = await peer.commands(5)
        assert (first.opaque, last.opaque) == (before.opaque, after.opaque)
        assert (json_answer.opaque, json_answer.code) == (7, ResponseCode.SYSTEM_ERROR)
        assert "JSON header" in str(json_answer.remark)
        assert (binary_answer.opaque, binary_answer.code) == (8, ResponseCode.SYSTEM_ERROR)
        assert binary_answer.serialize_type is SerializeType.ROCKETMQ
        assert (unsupported.opaque, unsupported.code) == (11, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        await peer.close()
    (record,) = caplog.records
    assert (record.levelno, "a frame cannot be read: JSON header" in record.message) == (logging.WARNING, True)


async def test_a_flood_of_unreadable_frames_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async with running_server({ECHO: echo}) as server:
        good, bad = await RawPeer.to(server), await RawPeer.to(server)
        before = request(ECHO, b"before")
        await bad.send(before.encode() + frame(b'{"code":"x","opaque":7}') * (MAX_UNREADABLE + 1))
        bad.writer.write_eof()
        first, *answers = FrameDecoder().receive_data(await bad.end())
        assert (first.opaque, first.body) == (before.opaque, b"before")
        assert {(answer.opaque, answer.code) for answer in answers} == {(7, ResponseCode.SYSTEM_ERROR)}
        assert len(answers) == MAX_UNREADABLE
        await good.send(request(ECHO).encode())
        assert len(await good.commands(1)) == 1
        await bad.close()
        await good.close()
    (closing,) = [record for record in caplog.records if "closing the connection" in record.message]
    assert closing.levelno == logging.WARNING
    assert f"more than {MAX_UNREADABLE} unreadable frames in one read (MAX_UNREADABLE)" in closing.message


async def test_a_request_with_an_unreadable_response_fails_at_once() -> None:
    def answer(connection: Connection, command: RemotingCommand) -> bytes:
        return frame(b'{"code":[],"flag":1,"opaque":%d}' % command.opaque)

    async with running_server({ECHO: echo, HOLD: answer}) as server:
        client = RemotingClient()
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(RemoteProtocolError):
            await client.invoke(address, request(HOLD), 60_000)
        assert (await client.invoke(address, request(ECHO))).code == 0
        assert len(server.connections) == 1
        await client.close()


headers = st.one_of(
    st.fixed_dictionaries(
        {"opaque": st.integers(0, 2**31 - 1)},
        optional={
            "code": st.integers(0, 9) | st.sampled_from(["1", "x", 1.5, None, [], 2**40]),
            "language": st.integers(-1, 20) | st.sampled_from(["JAVA", "", None, {}]),
            "version": st.sampled_from([409, "409", "x", None]),
            "flag": st.sampled_from([0, 0, 1, 2, 3, "0", "x"]),
            "remark": st.sampled_from(["r", 5, None, {}]),
            "extFields": st.sampled_from([{}, {"a": "b"}, {"a": None}, [], None, "text"]),
        },
    ).map(lambda header: (0, json.dumps(header).encode())),
    st.tuples(
        st.just(1),
        st.builds(
            lambda opaque, flag, rest: struct.pack(">hBhii", ECHO, 9, 409, opaque, flag) + rest,
            st.integers(0, 2**31 - 1),
            st.sampled_from([0, 0, 1, 2]),
            st.binary(max_size=16) | st.just(bytes(8)) | st.just(struct.pack(">ii", 0, -1)),
        ),
    ),
    st.tuples(st.sampled_from([0, 1, 2]), st.binary(max_size=12)),
)


@settings(deadline=None, max_examples=examples(50))
@example([(0, b"{}")], 1)
@given(st.lists(headers, max_size=MAX_UNREADABLE), st.integers(1, 200))
async def test_every_request_with_an_opaque_is_answered(parts: list[tuple[int, bytes]], chunk_size: int) -> None:
    """For any other content of the header and any chunks of the stream; responses and one-way requests are not."""
    expected = [opaque for serializer, header in parts if (opaque := asks(serializer, header)) is not None]
    stream = b"".join(frame(header, serializer) for serializer, header in parts)

    async with running_server({ECHO: echo}) as server:
        peer = await RawPeer.to(server)
        last = request(ECHO, b"last")
        for begin in range(0, len(stream), chunk_size):
            await peer.send(stream[begin : begin + chunk_size])
        await peer.send(last.encode())
        answers = await peer.commands(len(expected) + 1)
        assert [answer.opaque for answer in answers] == [*expected, last.opaque]
        assert all(answer.is_response for answer in answers)
        await peer.close()


def asks(serializer: int, header: bytes) -> int | None:
    """The opaque of a frame that is a request and wants an answer."""
    try:
        if serializer == 0:
            members = json.loads(header)
            flag = members.get("flag", 0)
            return members.get("opaque", 0) if str(flag) not in ("1", "2", "3") else None
        if serializer == 1:
            _, _, _, opaque, flag = struct.unpack_from(">hBhii", header)
            return opaque if not flag & 3 else None
    except (ValueError, struct.error, TypeError, AttributeError):
        pass
    return None
