"""TransactionProducer: messages that consumers see if, and only if, a local transaction succeeds.

    send half      the message goes to the broker, which shows it to nobody
    execute        the application's own work, with a database say; it says how that went
    end            COMMIT_MESSAGE shows the message, ROLLBACK_MESSAGE drops it, UNKNOW leaves it open
    check          the broker asks a producer of the group about each message that stays open

So the message is sent before the work and shown after it, and whatever crashes in between, `check` settles it: it is
given the message as the broker has it, looks up how the work went, and says so. It may be asked in another process than
the one that sent the message, and more than once.

The broker knows a producer by its heartbeats, which go to the brokers of topics that it has sent to, and of those named
in `topics`: name them, so that a producer that was started again is asked about what it left open.

Answers to `TransactionMQProducer` of Apache RocketMQ 4.9.8. Deliberate differences: the end waits for the broker's
answer, so that a message whose commit returned is there for consumers; an error of `execute` leaves the transaction
open and is raised; a delay is refused, where Apache drops it silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Any, TypeAlias

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.consumer.listener import call, is_addressed_to
from rucola.client.lifecycle import run_close_steps
from rucola.client.producer.producer import SEND_TIMEOUT_MS, Producer
from rucola.client.producer.send_request import SendResult, SendStatus
from rucola.client.trace_hooks import call_hook
from rucola.errors import BrokerError, InvalidMessage, RemotingError
from rucola.message import Message, MessageExt, properties, sysflag
from rucola.message.ids import parse_offset_msg_id
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline

logger = logging.getLogger(__name__)


class LocalTransactionState(Enum):
    """How the local transaction went. The names are Apache's."""

    COMMIT_MESSAGE = sysflag.TRANSACTION_COMMIT
    ROLLBACK_MESSAGE = sysflag.TRANSACTION_ROLLBACK
    UNKNOW = sysflag.TRANSACTION_NOT
    """Not known yet: the broker asks again later, and gives up after transactionCheckMax times."""


Execute: TypeAlias = Callable[[Message], Awaitable[LocalTransactionState]] | Callable[[Message], LocalTransactionState]
"""The local transaction: a coroutine function, or a plain function, which runs in a thread."""

Check: TypeAlias = (
    Callable[[MessageExt], Awaitable[LocalTransactionState]] | Callable[[MessageExt], LocalTransactionState]
)
"""Looks up how the local transaction of a message went: a coroutine function, or a plain one, run in a thread."""


class TransactionSendResult(SendResult, frozen=True):
    """Where the half message came to lie, and how its transaction went."""

    state: LocalTransactionState


class TransactionProducer(Producer):
    """A producer whose messages can hang on local transactions; it also sends plain ones.

        async with TransactionProducer("group", "host:9876", check=look_up, topics=["Orders"]) as producer:
            result = await producer.send_in_transaction(Message("Orders", b"..."), book)

    `options` are those of Producer.
    """

    def __init__(
        self, group: str, namesrv: str | None = None, *, check: Check, topics: Iterable[str] = (), **options: Any
    ) -> None:
        super().__init__(group, namesrv, **options)
        self.check = check
        self.topics = list(topics)
        self._checks = BackgroundTasks()

    async def _join(self) -> None:
        await super()._join()
        await self.instance.routes.find_all(self.topics)
        if self.topics:
            await self.instance.beat()

    async def _leave(self) -> None:
        await run_close_steps(self._checks.close, super()._leave)

    def _runs(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._checks or super()._runs(task)

    async def send_in_transaction(
        self, message: Message, execute: Execute, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> TransactionSendResult:
        """Send half of the message, execute the local transaction, and end both as it says.

        `execute` is given the message with its unique key, and not called unless the half message is stored without
        reservation; a half message that the broker cannot vouch for (FLUSH_DISK_TIMEOUT) is rolled back. Errors before
        that are those of `send`. If the broker does not take the end, that is logged, and settled by a check.
        `timeout_ms` is for sending the half message, and once more for the end; `execute` takes what time it needs.
        """
        if message.delay_level:
            raise InvalidMessage(f"a transactional message for {message.topic} cannot have a delay level")
        marks = {properties.TRAN_MSG: "true", properties.PGROUP: self.group}
        half = Message(message.topic, message.body, properties=message.properties | marks, flag=message.flag)
        with self._call():
            sent = await self._send_one(half, None, Deadline(timeout_ms))
            message.unique_key = half.unique_key
            state, why = LocalTransactionState.ROLLBACK_MESSAGE, None
            try:
                if sent.status is SendStatus.SEND_OK:
                    state, why = LocalTransactionState.UNKNOW, f"{self.group} failed in its local transaction"
                    state, why = _state(await call(execute, message)), None
            finally:
                await self._end(sent, state, why, Deadline(timeout_ms))
                if self.trace is not None:
                    address = self.instance.routes.address(sent.queue.broker_name) or sent.queue.broker_name
                    call_hook(self.trace.ended, self.group, half, address, state.name, from_check=False)
        return TransactionSendResult(sent.status, sent.msg_id, sent.offset_msg_id, sent.queue, sent.queue_offset, state)

    async def _end(self, sent: SendResult, state: LocalTransactionState, why: str | None, deadline: Deadline) -> None:
        _, physical_offset = parse_offset_msg_id(sent.offset_msg_id)
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=state.value,
            msg_id=sent.msg_id,
        )
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, header)
        command.remark = why
        try:
            connection = await self._connection(sent.queue, deadline)
            if state is LocalTransactionState.UNKNOW:  # which no broker answers
                connection.send(command)
            else:
                answer = await self._in_flight.answer(self._in_flight.post(connection, command, deadline))
                if answer.code != ResponseCode.SUCCESS:
                    raise BrokerError(answer.code, answer.remark, sent.queue.broker_name)
        except RemotingError as error:
            logger.warning(
                "group %s: the end %s of transaction %s did not get through; the broker will ask: %s",
                self.group, state.name, sent.msg_id, error,
            )  # fmt: skip

    def check_transaction(
        self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        """A broker asks how the transaction of a message went: look it up in the background, and say so."""
        self._checks.start(self._answer(connection, header, message), f"check of transaction {message.msg_id}")

    async def _answer(
        self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        state, why = LocalTransactionState.UNKNOW, None
        try:
            state = _state(await call(self.check, message))
        except BaseException as error:
            if is_addressed_to(asyncio.current_task(), error):
                raise
            why = f"the check failed: {error!r}"
            logger.warning("group %s: the check of transaction %s failed", self.group, message.msg_id, exc_info=error)
        end = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check="true",
            msg_id=message.msg_id,
            transaction_id=header.transaction_id,
        )
        command = RemotingCommand.oneway(RequestCode.END_TRANSACTION, end)
        command.remark = why
        connection.send(command)
        if self.trace is not None:
            call_hook(self.trace.ended, self.group, message, connection.peer, state.name, from_check=True)


def _state(value: object) -> LocalTransactionState:
    if not isinstance(value, LocalTransactionState):
        raise TypeError(f"a local transaction must say a LocalTransactionState, not {value!r}")
    return value
