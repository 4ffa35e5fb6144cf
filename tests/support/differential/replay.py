"""Replay of recorded sequences against a broker and a name server of Rucola.

Sequences use names of their own, so most run concurrently, eight at a time: most of the time of a request that changes
a table is its fsync, which concurrent requests share. Sequences that change settings or register brokers run
afterwards, one by one, in recorded order.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from rucola import fastjson, settings
from rucola.broker.broker import Broker
from rucola.broker.config import from_properties
from rucola.domain.route import ORDER_TOPIC_CONFIG
from rucola.message.topics import BENCHMARK_TOPIC, SCHEDULE_TOPIC
from rucola.namesrv.server import Namesrv
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand, SerializeType, decode_command, next_opaque
from support.cluster import HOST
from support.differential.normal_form import NormalForm
from support.differential.recording import BROKER, NAMESRV, Placeholders, Sequence

SETTINGS = """
brokerClusterName=DC
brokerName=bdiff
enablePropertyFilter=true
messageDelayLevel=1s 2s 20s 21s 22s 23s 3s 4s
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=20000
maxHashSlotNum=10000
maxIndexNum=40000
maxMessageSize=1048576
transactionCheckInterval=3000
transactionTimeOut=3000
transactionCheckMax=3
"""
VERSION = 401
"""Version of the recording client, if a request has no other."""
SILENCE_S = 0.3
"""Timeout of requests to which Apache sent no response."""
ANSWER_S = 10
SIDE_BY_SIDE = 8
LAST_PASS = "3/"
CHANGES = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.REGISTER_BROKER}
DELAY_LEVELS = 8
DUMP_GROUP = "DUMPG"


class Peer:
    """A connection that sends recorded requests unchanged, whatever is wrong with them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answers: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, address: str) -> Peer:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def close(self) -> None:
        self._writer.close()
        await asyncio.wait([self._reading])

    async def ask(self, request: dict[str, Any], ext: dict[str, Any] | None, body: bytes, wait_s: float) -> Any:
        """Send a request; return the response, None after `wait_s`, or "closed" if the connection was closed."""
        opaque = next_opaque()
        answer = self._answers[opaque] = asyncio.get_running_loop().create_future()
        self._writer.write(_frame(request, ext, body, opaque))
        try:
            async with asyncio.timeout(wait_s):
                return await answer
        except TimeoutError:
            return None
        except ConnectionError:
            return "closed"

    async def _read(self) -> None:
        try:
            while True:
                size, word = struct.unpack(">iI", await self._reader.readexactly(8))
                rest = await self._reader.readexactly(size - 4)
                header = word & 0xFFFFFF
                command = decode_command(rest[:header], rest[header:], word >> 24)
                if command.flag & FLAG_RESPONSE and not self._answers[command.opaque].done():
                    self._answers.pop(command.opaque).set_result(command)
        except (asyncio.IncompleteReadError, ConnectionError):
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionError())


def _frame(request: dict[str, Any], ext: dict[str, Any] | None, body: bytes, opaque: int) -> bytes:
    version, flag, language = request.get("version", VERSION), request.get("flag", 0), request.get("lang", "JAVA")
    if request.get("fmt") == "bin":
        command = RemotingCommand(
            request["code"], ext, body, flag, opaque, None, language, version, SerializeType.ROCKETMQ
        )
        return command.encode()
    fields = {"code": request["code"], "flag": flag, "language": language, "opaque": opaque, "version": version}
    if ext is not None:
        fields["extFields"] = ext
    header = json.dumps(fields | {"serializeTypeCurrentRPC": "JSON"}).encode()
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


Outcome = tuple[list[dict[str, Any]], dict[str, Any]]
"""The responses to a sequence and the resulting state, in the recorded form."""


class Replay:
    """A running broker and name server with the recorded configuration."""

    def __init__(self, broker: str, namesrv: str) -> None:
        self._addresses = {BROKER: broker, NAMESRV: namesrv}

    async def play(self, sequences: Iterable[Sequence]) -> dict[str, Outcome]:
        """Send the requests of all sequences; return the outcomes by name."""
        await self._prepare()
        alone = {sequence.name: sequence for sequence in sequences if _is_alone(sequence)}
        others = [sequence for sequence in sequences if sequence.name not in alone]
        turns = asyncio.Semaphore(SIDE_BY_SIDE)

        async def in_turn(sequence: Sequence) -> Outcome:
            async with turns:
                return await self._play(sequence)

        outcomes = dict(zip([other.name for other in others], await asyncio.gather(*map(in_turn, others)), strict=True))
        is_last_pass = False
        for name, sequence in alone.items():
            if name.startswith(LAST_PASS) and not is_last_pass:
                is_last_pass = True
                await self._begin_last_pass()
            outcomes[name] = await self._play(sequence)
        return outcomes

    async def _play(self, sequence: Sequence) -> Outcome:
        suffix = f"z00000x{sequence.number}z"
        broker, namesrv = self._addresses[BROKER], self._addresses[NAMESRV]
        values, form = Placeholders(suffix, broker, namesrv), NormalForm(suffix, broker, namesrv)
        expected = iter(sequence.answers)
        answers = []
        async with AsyncExitStack() as stack:
            peers: dict[str, Peer] = {}

            async def peer(name: str) -> Peer:
                if name not in peers:
                    peers[name] = await Peer.connect(self._addresses[name[0]])
                    stack.push_async_callback(peers[name].close)
                return peers[name]

            state = State(await peer(BROKER + "state"), suffix, form)
            await state.begin()
            for index, request in enumerate(sequence.requests):
                if "close" in request:
                    await peers.pop(request["close"]).close()
                    continue
                asked = await peer(f"{request['s']}{request.get('c', 0)}")
                answers.append(await self._answer(asked, index, request, next(expected), values, form))
            return answers, await state.read()

    async def _prepare(self) -> None:
        """Create what the recorded servers had before any sequence.

        That is the namespace of ordered topics, which a name server sends with each registration, and a log in which no
        message of a sequence has the physical offset 0.
        """
        message = {"a": "p", "b": BENCHMARK_TOPIC, "e": "0", "f": "0", "g": "0", "h": "0"}
        await self._change(BROKER, RequestCode.SEND_MESSAGE_V2, message, b"first")
        ext = {"namespace": ORDER_TOPIC_CONFIG, "key": "any", "value": "any"}
        await self._change(NAMESRV, RequestCode.PUT_KV_CONFIG, ext)
        await self._change(NAMESRV, RequestCode.DELETE_KV_CONFIG, ext)

    async def _begin_last_pass(self) -> None:
        """Disable autoCreateTopicEnable: Apache's broker creates no topics once this was disabled and enabled."""
        await self._change(BROKER, RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=false")

    async def _change(
        self, server: str, code: RequestCode, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        peer = await Peer.connect(self._addresses[server])
        answer = await peer.ask({"code": code}, ext, body, ANSWER_S)
        assert answer.code == ResponseCode.SUCCESS
        await peer.close()

    async def _answer(
        self,
        peer: Peer,
        index: int,
        request: dict[str, Any],
        expected: dict[str, Any],
        values: Placeholders,
        form: NormalForm,
    ) -> dict[str, Any]:
        """Return the response to one request.

        If the recorder slept before a request, for a change to take effect, the request is repeated until its response
        has the recorded code, up to five times.
        """
        wait_s = SILENCE_S if "noanswer" in expected else ANSWER_S
        attempts = 5 if "sleep" in request else 1
        for attempt in range(attempts):
            ext, body = values.fill(request["ext"]), values.body(request["body"])
            answer = await peer.ask(request, ext, body, wait_s)
            if answer is None:
                return {"noanswer": True}
            if answer == "closed":
                return {"closed": True}
            values.answers[index] = answer.ext_fields
            found = form.answer(request["code"], answer)
            if found["code"] == expected.get("code") or attempt == attempts - 1:
                break
            await asyncio.sleep(request["sleep"])
        return found


def _is_alone(sequence: Sequence) -> bool:
    """Return whether a sequence changes what other sequences see, or depends on such a change."""
    return sequence.name.startswith(LAST_PASS) or any(request["code"] in CHANGES for request in sequence.requests)


class State:
    """The state of one sequence: its entries in the broker's tables and the messages in its queues."""

    def __init__(self, peer: Peer, suffix: str, form: NormalForm) -> None:
        self._peer = peer
        self._suffix = suffix
        self._form = form
        self._scheduled: list[int] = []

    async def begin(self) -> None:
        """Read the end of each delay level's queue, from which `read` looks for messages of this sequence."""
        for level in range(DELAY_LEVELS):
            ext = {"topic": SCHEDULE_TOPIC, "queueId": str(level)}
            self._scheduled.append(int((await self._ask(RequestCode.GET_MAX_OFFSET, ext)).ext_fields["offset"]))

    async def read(self) -> dict[str, Any]:
        """Return the state in the recorded form."""
        topics = await self._table(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
        groups = await self._table(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable")
        offsets = await self._table(RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable")
        state: dict[str, Any] = self._form.value({"topics": topics, "groups": groups, "offsets": offsets})
        for name, topic in topics.items():
            for queue_id in range(max(topic["readQueueNums"], topic["writeQueueNums"])):
                found, end = await self._messages(name, queue_id, 0)
                if found or end != ResponseCode.PULL_NOT_FOUND:
                    state[self._form.text(f"q:{name}:{queue_id}")] = [*found, ["end", end]]
        for queue_id, offset in enumerate(self._scheduled):
            found, _ = await self._messages(SCHEDULE_TOPIC, queue_id, offset)
            own = [message | {"queueOffset": "<R>"} for message in found if "{N}" in json.dumps(message)]
            if own:
                state[f"sys:{SCHEDULE_TOPIC}:{queue_id}"] = own
        return state

    async def _ask(self, code: RequestCode, ext: dict[str, str] | None = None) -> RemotingCommand:
        answer = await self._peer.ask({"code": code}, ext, b"", ANSWER_S)
        assert isinstance(answer, RemotingCommand), code
        return answer

    async def _table(self, code: RequestCode, name: str) -> dict[str, Any]:
        document = fastjson.loads((await self._ask(code)).body)
        return {key: value for key, value in document[name].items() if self._suffix in str(key)}

    async def _messages(self, topic: str, queue_id: int, offset: int) -> tuple[list[Any], int]:
        """Return the messages of a queue from `offset`, and the code of the first response without messages."""
        found: list[Any] = []
        while True:
            ext = {"consumerGroup": DUMP_GROUP, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)}
            ext |= {"maxMsgNums": "32", "sysFlag": str(pull.SUBSCRIPTION), "commitOffset": "0"}
            ext |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
            answer = await self._ask(RequestCode.PULL_MESSAGE, ext)
            if answer.code != ResponseCode.SUCCESS:
                return found, answer.code
            found += self._form.messages(answer.body)
            offset = int(answer.ext_fields["nextBeginOffset"])


@asynccontextmanager
async def replay(path: Path) -> AsyncIterator[Replay]:
    """Run a broker and a name server with the configuration of the recording."""
    async with Namesrv(HOST, 0) as namesrv:
        namesrv_address = f"{HOST}:{namesrv.port}"
        place = {"listenPort": "0", "bindAddress": HOST, "haListenPort": "0", "namesrvAddr": namesrv_address}
        place["storePathRootDir"] = str(path)
        config, store_config, unused = from_properties(settings.parse(SETTINGS) | place)
        assert not unused
        async with Broker(config, store_config) as broker:
            yield Replay(broker.address, namesrv_address)
