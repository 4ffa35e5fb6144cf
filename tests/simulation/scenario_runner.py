"""The interpreter of tests/scenarios: a broker on a `MemoryLoop`, and the commands that an operator would give.

`tests/scenarios/README.md` tells what the commands mean. A place is written `Orders:0:3`, topic, queue and queue
offset, and a queue `Orders:0`.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rucola.broker.broker import Broker
from rucola.broker.config import from_properties
from rucola.domain.allocation import average
from rucola.domain.client import ConsumerData, HeartbeatData, ProducerData
from rucola.domain.group import LATEST
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.domain.subscription import subscription
from rucola.message import MessageExt, properties, sysflag
from rucola.message.record import decode, decode_many
from rucola.protocol import pull
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.group import ResetOffsetRequestHeader, decode_offset_table
from rucola.protocol.heartbeat import (
    GetConsumerListByGroupRequestHeader,
    GetConsumerListByGroupResponseBody,
    UnregisterClientRequestHeader,
)
from rucola.protocol.lock import LockBatchResponseBody
from rucola.protocol.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.send import SendMessageRequestHeader, SendMessageResponseHeader
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.protocol.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from simulation.memory_loop import MemoryClient, MemoryLoop
from support.stores import config as small_store

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
HEARTBEAT_MS = 30_000
ENDS = {"commit": sysflag.TRANSACTION_COMMIT, "rollback": sysflag.TRANSACTION_ROLLBACK, "unknown": 0}


class Client:
    """Somebody with a connection, and what they have in hand."""

    def __init__(self, name: str, connection: MemoryClient) -> None:
        self.name = name
        self.connection = connection
        self.group = ""
        self.topics: dict[str, str] = {}
        self.positions: dict[str, int] = {}
        self.held: dict[str, RemotingCommand] = {}
        self.heartbeat: HeartbeatData | None = None
        self.next_heartbeat_ms = 0
        self.halves: dict[str, tuple[int, int, str]] = {}


class ScenarioRunner:
    """A broker and its clients. `perform` gives one command and returns what came of it, line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settings: dict[str, str] = {}
        self._loop = MemoryLoop()
        self._broker: Broker | None = None
        self._clients: dict[str, Client] = {}
        self._seen: dict[str, MessageExt] = {}

    def close(self) -> None:
        self._stop()
        self._loop.close()

    def perform(self, line: str) -> list[str]:
        words = shlex.split(line)
        options = dict(word.split("=", 1) for word in words[1:] if re.match(r"[a-z-]+=", word))
        plain = [word for word in words[1:] if not re.match(r"[a-z-]+=", word)]
        command: Callable[..., Iterator[str]] | None = getattr(self, "do_" + words[0].replace("-", "_"), None)
        assert command is not None, f"no such command: {line}"
        named = {name.replace("-", "_"): value for name, value in options.items()}
        return [*command(*plain, **named), *self._news()]

    # Commands: the broker and the time.

    def do_broker(self, **settings: str) -> Iterator[str]:
        assert self._broker is None, "settings come first"
        self._settings = {_camel(name): value for name, value in settings.items()}
        yield from ()

    def do_restart(self, away: str = "0s") -> Iterator[str]:
        self._stop()
        self._loop.now_ms += _ms(away)
        self._start()
        yield from ()

    def do_kill(self) -> Iterator[str]:
        left = self._path.with_name(self._path.name + "-left")
        shutil.copytree(self._path, left)
        self._stop()
        self._path = left
        self._start()
        yield from ()

    def do_advance(self, time: str) -> Iterator[str]:
        self._start()
        self._loop.advance(_ms(time), self._beat_when_due)
        yield from ()

    def do_silence(self, client: str) -> Iterator[str]:
        self._client(client).heartbeat = None
        yield from ()

    def do_topic(self, topic: str, queues: str = "1") -> Iterator[str]:
        header = CreateTopicRequestHeader(
            topic=topic, read_queue_nums=int(queues), write_queue_nums=int(queues), perm=6
        )
        yield from self._done("operator", RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    # Commands: messages.

    def do_send(
        self,
        topic: str,
        body: str,
        queue: str = "0",
        tags: str = "",
        keys: str = "",
        id: str = "",
        delay: str = "",
        after: str = "",
        having: str = "",
    ) -> Iterator[str]:
        pairs = {properties.TAGS: tags, properties.KEYS: keys, properties.UNIQ_KEY: id, properties.DELAY: delay}
        pairs[properties.TIMER_DELAY_MS] = str(_ms(after)) if after else ""
        pairs |= dict(pair.split(":", 1) for pair in having.split())
        yield from self._send(
            "operator", topic, int(queue), body, {name: value for name, value in pairs.items() if value}
        )

    def do_pull(
        self,
        client: str,
        queue: str,
        wait: str = "",
        tags: str = "",
        sql: str = "",
        begin: str = "",
        commit: str = "",
    ) -> Iterator[str]:
        who = self._client(client)
        topic, queue_id = queue.rsplit(":", 1)
        offset = int(begin) if begin else who.positions.get(queue, self._committed(who.group, topic, int(queue_id)))
        flags = pull.SUBSCRIPTION | (pull.SUSPEND if wait else 0) | (pull.COMMIT_OFFSET if commit else 0)
        header = PullMessageRequestHeader(
            consumer_group=who.group,
            topic=topic,
            queue_id=int(queue_id),
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=flags,
            commit_offset=int(commit or 0),
            suspend_timeout_millis=_ms(wait) if wait else 0,
            subscription=sql or tags or who.topics.get(topic, "*"),
            expression_type="SQL92" if sql else "TAG",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        who.positions[queue] = offset
        answer = who.connection.ask(command)
        if answer is None:
            who.held[queue] = command
            yield "waits"
        else:
            yield from self._pulled(who, queue, answer)

    def do_commit(self, group: str, place: str) -> Iterator[str]:
        topic, queue_id, offset = place.rsplit(":", 2)
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=int(queue_id), commit_offset=int(offset)
        )
        yield from self._done("operator", RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def do_offset(self, group: str, queue: str) -> Iterator[str]:
        topic, queue_id = queue.rsplit(":", 1)
        yield f"{queue}:{self._committed(group, topic, int(queue_id))}"

    def do_give_back(self, client: str, place: str, level: str = "0", most: str = "") -> Iterator[str]:
        who = self._client(client)
        header = ConsumerSendMsgBackRequestHeader(
            offset=self._seen[place].physical_offset,
            group=who.group,
            delay_level=int(level),
            max_reconsume_times=int(most) if most else 16,
        )
        yield from self._done(client, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    # Commands: transactions.

    def do_begin(self, client: str, name: str, topic: str, body: str, queue: str = "0") -> Iterator[str]:
        who = self._client(client)
        pairs = {properties.TRAN_MSG: "true", properties.PGROUP: who.group, properties.UNIQ_KEY: name}
        answer = self._send_answer(client, topic, int(queue), body, pairs)
        if answer.code == ResponseCode.SUCCESS:
            where = answer.decode_header(SendMessageResponseHeader)
            who.halves[name] = (where.queue_offset, int(where.msg_id[16:], 16), name)
        yield _outcome(answer)

    def do_end(self, client: str, name: str, how: str) -> Iterator[str]:
        who = self._client(client)
        queue_offset, physical_offset, key = who.halves[name]
        header = EndTransactionRequestHeader(
            producer_group=who.group,
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=ENDS[how],
            msg_id=key,
        )
        answer = who.connection.ask(RemotingCommand.request(RequestCode.END_TRANSACTION, header))
        yield "no answer" if answer is None else _outcome(answer)

    # Commands: who is there.

    def do_join(self, client: str, group: str, *subscriptions: str) -> Iterator[str]:
        who = self._client(client)
        pairs = [word.partition("=") for word in subscriptions]
        who.group, who.topics = group, {topic: tags or "*" for topic, _, tags in pairs}
        data = [subscription(topic, tags, version=self._loop.now_ms) for topic, tags in who.topics.items()]
        yield from self._heartbeat(who, HeartbeatData(
            client_id=client, consumer_data_set=[ConsumerData(group_name=group, subscription_data_set=data)]
        ))  # fmt: skip

    def do_produce(self, client: str, group: str) -> Iterator[str]:
        who = self._client(client)
        who.group = group
        data = [ProducerData(group_name=group)]
        yield from self._heartbeat(who, HeartbeatData(client_id=client, producer_data_set=data))

    def do_leave(self, client: str) -> Iterator[str]:
        who = self._client(client)
        who.heartbeat = None
        header = UnregisterClientRequestHeader(client_id=client, producer_group=who.group, consumer_group=who.group)
        yield from self._done(client, RequestCode.UNREGISTER_CLIENT, header)

    def do_crash(self, client: str) -> Iterator[str]:
        self._clients.pop(client).connection.close()
        yield from ()

    def do_share(self, group: str, topic: str, queues: str = "4") -> Iterator[str]:
        header = GetConsumerListByGroupRequestHeader(consumer_group=group)
        answer = self._ask("operator", RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        if answer.code != ResponseCode.SUCCESS:
            yield _outcome(answer)
            return
        members = sorted(decode_body(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list)
        everything = [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(int(queues))]
        for member in members:
            share = average(member, everything, members)
            yield f"{member}: {' '.join(f'{topic}:{queue.queue_id}' for queue in share) or 'nothing'}"

    def do_lock(self, client: str, *queues: str) -> Iterator[str]:
        answer = self._lock_request(client, RequestCode.LOCK_BATCH_MQ, queues)
        held = decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set
        yield "holds " + (" ".join(f"{queue.topic}:{queue.queue_id}" for queue in sorted(held)) or "nothing")

    def do_unlock(self, client: str, *queues: str) -> Iterator[str]:
        yield _outcome(self._lock_request(client, RequestCode.UNLOCK_BATCH_MQ, queues))

    def do_reset(self, group: str, topic: str, to: str, force: str = "true") -> Iterator[str]:
        moment = LATEST if to == "end" else self._loop.now_ms - _ms(to.removesuffix("-ago"))
        header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=moment, is_force=force)
        yield from self._done("operator", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    # How they are done.

    def _start(self) -> None:
        if self._broker is None:
            config, store, unknown = from_properties(
                self._settings
                | {"brokerName": "broker-a", "bindAddress": "127.0.0.1", "listenPort": "0"}
                | {"grpcServerEnabled": "false"}
            )
            assert not unknown, unknown
            small = small_store(
                self._path, mapped_file_size_commit_log=1 << 20, message_delay_level=store.message_delay_level
            )
            self._broker = Broker(config, small, clock=lambda: self._loop.now_ms)
            self._loop.run(self._broker.start())
            self._loop.settle()

    def _stop(self) -> None:
        for client in list(self._clients):
            self._clients.pop(client).connection.close()
        if self._broker is not None:
            self._loop.run(self._broker.stop())
            self._broker = None

    def _client(self, name: str) -> Client:
        self._start()
        if name not in self._clients:
            self._clients[name] = Client(name, self._loop.connect(50_000 + len(self._clients)))
        return self._clients[name]

    def _ask(self, client: str, code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        answer = self._client(client).connection.ask(RemotingCommand.request(code, header, body))
        assert answer is not None, f"{code.name} was not answered"
        return answer

    def _done(self, client: str, code: RequestCode, header: Header) -> Iterator[str]:
        yield _outcome(self._ask(client, code, header))

    def _heartbeat(self, who: Client, data: HeartbeatData) -> Iterator[str]:
        who.heartbeat = data
        yield _outcome(self._beat(who, data))

    def _beat(self, who: Client, data: HeartbeatData) -> RemotingCommand:
        who.next_heartbeat_ms = self._loop.now_ms + HEARTBEAT_MS
        return self._ask(who.name, RequestCode.HEART_BEAT, body=encode_body(data))

    def _beat_when_due(self) -> None:
        for who in self._clients.values():
            if who.heartbeat is not None and who.next_heartbeat_ms <= self._loop.now_ms:
                self._beat(who, who.heartbeat)

    def _lock_request(self, client: str, code: RequestCode, queues: tuple[str, ...]) -> RemotingCommand:
        wanted = [MessageQueue(topic, "broker-a", int(number)) for topic, number in (q.rsplit(":", 1) for q in queues)]
        body = LockedQueues(client_id=client, consumer_group=self._client(client).group, mq_set=wanted)
        return self._ask(client, code, body=encode_body(body))

    def _send_answer(self, client: str, topic: str, queue: int, body: str, pairs: dict[str, str]) -> RemotingCommand:
        header = SendMessageRequestHeader(
            producer_group=self._client(client).group or "operator",
            topic=topic,
            queue_id=queue,
            sys_flag=sysflag.TRANSACTION_PREPARED if properties.TRAN_MSG in pairs else 0,
            born_timestamp=self._loop.now_ms,
            flag=0,
            properties=properties.join(pairs).decode(),
        )
        return self._ask(client, RequestCode.SEND_MESSAGE, header, body.encode())

    def _send(self, client: str, topic: str, queue: int, body: str, pairs: dict[str, str]) -> Iterator[str]:
        answer = self._send_answer(client, topic, queue, body, pairs)
        if answer.code != ResponseCode.SUCCESS:
            yield _outcome(answer)
        elif {properties.DELAY, properties.TIMER_DELAY_MS} & pairs.keys():
            yield "put off"
        else:
            yield f"{topic}:{queue}:{answer.decode_header(SendMessageResponseHeader).queue_offset}"

    def _committed(self, group: str, topic: str, queue_id: int) -> int:
        header = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id)
        return (
            self._ask("operator", RequestCode.QUERY_CONSUMER_OFFSET, header).decode_header(OffsetResponseHeader).offset
        )

    def _pulled(self, who: Client, queue: str, answer: RemotingCommand) -> Iterator[str]:
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_many(answer.body):
                place = f"{message.topic}:{message.queue_id}:{message.queue_offset}"
                self._seen[place] = message
                yield f"{place} {_line(message)}"
        elif answer.code == ResponseCode.PULL_NOT_FOUND:
            yield "nothing"
        else:
            yield _outcome(answer)
        if answer.ext_fields:
            where = answer.decode_header(PullMessageResponseHeader)
            if answer.code != ResponseCode.SUCCESS and where.next_begin_offset != who.positions[queue]:
                yield f"go on at {queue}:{where.next_begin_offset}"
            who.positions[queue] = where.next_begin_offset

    def _news(self) -> Iterator[str]:
        """What clients have heard that did not ask just now."""
        if self._broker is None:
            return
        self._loop.settle()
        for who in sorted(self._clients.values(), key=lambda client: client.name):
            for queue, command in list(who.held.items()):
                if (answer := who.connection.answer(command)) is not None:
                    del who.held[queue]
                    yield from (f"-> {who.name} {line}" for line in self._pulled(who, queue, answer))
            told, who.connection.told = who.connection.told, []
            for command in told:
                yield f"-> {who.name} {self._told(who, command)}"
            if not who.connection.is_open:
                del self._clients[who.name]
                yield f"-> {who.name} is disconnected"

    def _told(self, who: Client, command: RemotingCommand) -> str:
        match command.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                return f"the members of {command.ext_fields['consumerGroup']} have changed"
            case RequestCode.CHECK_TRANSACTION_STATE:
                header = command.decode_header(CheckTransactionStateRequestHeader)
                message = decode(command.body)
                name = message.unique_key or ""
                who.halves[name] = (header.tran_state_table_offset, header.commit_log_offset, name)
                return f"how did {name} end?"
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                offsets = decode_offset_table(command.body)
                for queue, offset in offsets.items():
                    who.positions[f"{queue.topic}:{queue.queue_id}"] = offset
                return "begin at " + " ".join(f"{q.topic}:{q.queue_id}:{offset}" for q, offset in offsets.items())
        return f"request {command.code}"


def _line(message: MessageExt) -> str:
    words = [f'"{message.body.decode()}"']
    words += [f"tags={message.tags}"] if message.tags else []
    words += [f"keys={message.keys}"] if message.keys else []
    words += [f"again={message.reconsume_times}"] if message.reconsume_times else []
    retried = message.properties.get(properties.RETRY_TOPIC)
    words += [f"of={retried}"] if retried else []
    return " ".join(words)


def _outcome(answer: RemotingCommand) -> str:
    if answer.code == ResponseCode.SUCCESS:
        return "ok"
    return f"{ResponseCode(answer.code).name}: {answer.remark}" if answer.remark else ResponseCode(answer.code).name


def _ms(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()  # type: ignore[union-attr]
    return int(number) * UNITS_MS[unit]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
