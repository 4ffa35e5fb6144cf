"""What C++ and JavaScript clients send, as captured from them, against a live broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from rucola.message.record import decode_many
from rucola.protocol.frame import FrameDecoder
from support.cluster import cluster

CPP = {"language": "CPP", "version": 63, "flag": 0, "remark": ""}
CPP_EXTRA = {"AccessKey": "", "OnsChannel": "ALIYUN", "Signature": ""}
ALI_ONS = {"language": "JAVA", "version": 121, "flag": 0}


class Peer:
    """A client that writes its own JSON; answers come back as the JSON they are, with their bodies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._opaque = 0

    async def ask(
        self, code: int, ext: dict[str, Any], body: bytes = b"", **members: Any
    ) -> tuple[dict[str, Any], bytes]:
        self._opaque += 1
        header = json.dumps({"code": code, "opaque": self._opaque, "extFields": ext, **members}).encode()
        size = 4 + len(header) + len(body)
        self._writer.write(size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body)
        while True:
            frame = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
            end = 4 + int.from_bytes(frame[:4], "big")
            assert end < 1 << 24, "these clients read JSON headers only"
            answer = json.loads(frame[4:end])
            if answer["opaque"] == self._opaque and answer["flag"] & 1:
                ext_fields = answer.get("extFields") or {}
                assert all(isinstance(value, str) for value in ext_fields.values()), "C++ ignores what is no string"
                return answer, frame[end:]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def connect(address: str) -> Peer:
    host, _, port = address.rpartition(":")
    return Peer(*await asyncio.open_connection(host, int(port)))


async def test_a_cpp_client_sends_pulls_and_commits(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        peer = await connect(broker.address)
        send = {
            "producerGroup": "P", "topic": "Auto", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": 1, "sysFlag": 0, "bornTimestamp": "1795216857956", "flag": 0, "reconsumeTimes": 0,
            "properties": "TAGS\x01标签\x02UNIQ_KEY\x01C0A80001\x02", "unitMode": "0", "batch": "0", **CPP_EXTRA,
        }  # fmt: skip
        sent, _ = await peer.ask(10, send, b"body", **CPP)
        assert sent["code"] == 0
        assert sent["extFields"]["queueId"] == "1"
        assert sent["extFields"]["queueOffset"] == "0"

        heartbeat = (
            '{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"G",'
            '"messageModel":1,"subscriptionDataSet":[{"subString":"标签","subVersion":"1795216857956",'
            '"topic":"Auto"}],"unitMode":"0"}]}\n'
        )
        assert (await peer.ask(34, CPP_EXTRA, heartbeat.encode(), **CPP))[0]["code"] == 0
        members, body = await peer.ask(38, {"consumerGroup": "G", **CPP_EXTRA}, **CPP)
        assert (members["code"], json.loads(body)) == (0, {"consumerIdList": ["c"]})

        place = {"consumerGroup": "G", "topic": "Auto", "queueId": 1, **CPP_EXTRA}
        unknown, _ = await peer.ask(14, place, **CPP)
        assert (unknown["code"], unknown["extFields"]) == (0, {"offset": "0"}), "the queue begins at 0, in memory"
        pull = {
            **place, "queueOffset": "0", "maxMsgNums": 32, "sysFlag": 7, "commitOffset": "0",
            "suspendTimeoutMillis": "15000", "subscription": "标签", "subVersion": "1795216857956",
        }  # fmt: skip
        pulled, body = await peer.ask(11, pull, **CPP)
        assert pulled["code"] == 0
        assert pulled["extFields"] == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1",
        }  # fmt: skip
        assert [message.body for message in decode_many(body)] == [b"body"]
        committed, _ = await peer.ask(15, {**place, "commitOffset": "1"}, **CPP)
        assert committed["code"] == 0
        assert (await peer.ask(14, place, **CPP))[0]["extFields"] == {"offset": "1"}
        gone, _ = await peer.ask(35, {"clientID": "c", "producerGroup": "", "consumerGroup": "G"}, **CPP)
        assert gone["code"] == 0
        assert (await peer.ask(38, {"consumerGroup": "G"}, **CPP))[0]["code"] == 1
        await peer.close()


async def test_an_ali_ons_client_sends_pulls_and_commits(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        peer = await connect(broker.address)
        create = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        assert (await peer.ask(17, create, **ALI_ONS))[0]["code"] == 0
        send = {
            "a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1795216857956, "h": 0,
            "i": "TAGS\x01null\x02WAIT\x01true\x02", "j": 0, "k": False, "m": False,
        }  # fmt: skip
        sent, _ = await peer.ask(310, send, b"body", **ALI_ONS)
        assert sent["code"] == 0

        heartbeat = {
            "clientID": "127.0.0.1@x",
            "consumerDataSet": [
                {
                    "groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
                    "subscriptionDataSet": [
                        {"topic": "T", "subString": "*", "classFilterMode": False, "tagsSet": [], "codeSet": [],
                         "subVersion": 1795216857956}
                    ],
                }
            ],
            "producerDataSet": [{"groupName": "P"}],
        }  # fmt: skip
        assert (await peer.ask(34, {}, json.dumps(heartbeat).encode(), **ALI_ONS))[0]["code"] == 0
        place = {"consumerGroup": "G", "topic": "T", "queueId": 0}
        assert (await peer.ask(15, {**place, "commitOffset": -1}, **ALI_ONS))[0]["code"] == 0
        unknown, _ = await peer.ask(14, place, **ALI_ONS)
        assert (unknown["code"], unknown["extFields"]) == (0, {"offset": "0"}), "a negative offset counts as none"
        pull = {
            **place, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0,
            "suspendTimeoutMillis": 15000, "subscription": "*", "subVersion": 1795216857956,
        }  # fmt: skip
        pulled, body = await peer.ask(11, pull, **ALI_ONS)
        assert pulled["code"] == 0
        (message,) = decode_many(body)
        assert message.tags == "null"
        assert message.offset_msg_id == sent["extFields"]["msgId"]
        assert "WAIT" not in message.properties
        await peer.close()


async def test_garbage_does_not_disturb_other_clients(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        good = await connect(broker.address)
        host, _, port = broker.address.rpartition(":")
        for garbage in (
            b"\x7f\xff\xff\xff",
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(64),
            b"\x00\x00\x00\x08\x07\x00\x00\x04abcd\xff\xff\xff\xff",  # an unknown serializer, then no frame
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            assert FrameDecoder().receive_data(await reader.read()) == []
            writer.close()
            await writer.wait_closed()
        assert (await good.ask(38, {"consumerGroup": "G"}, **CPP))[0]["code"] == 1
        await good.close()
