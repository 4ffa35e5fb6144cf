"""TransactionProducer: messages that consumers see only if a local transaction commits.

1. Send the half message, which the broker stores invisibly to consumers.
2. Execute the local transaction, for example in a database; its callback returns a LocalTransactionState.
3. End the message's transaction: COMMIT_MESSAGE makes the message visible, ROLLBACK_MESSAGE drops it, UNKNOW leaves it
   open.
4. For each transaction that stays open, the broker requests a check from a producer of the group, which may be another
   process, and more than once. `check` gets the message as stored and returns the outcome of the local transaction.

Checks are sent to producers with heartbeats at the broker. These go to the brokers of topics that it has sent to, and
of `topics`: pass these, so that a restarted producer gets the checks of transactions that it left open.

Corresponds to `TransactionMQProducer` of Apache RocketMQ 4.9.8. Deliberate differences: ending a transaction waits for
the broker's response, so that consumers can see a message when its commit has returned; an exception of `execute`
leaves the transaction open and is raised; a delay level is rejected, while Apache ignores it silently; a half message
that is not SEND_OK is rolled back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import Any, TypeAlias, Unpack

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.callbacks import invoke, is_addressed_to
from rucola.client.connection_options import ConnectionOptions
from rucola.client.daemon_threads import DaemonThreads
from rucola.client.lifecycle import run_close_steps
from rucola.client.producer.producer import SEND_TIMEOUT_MS, Producer, ProducerArguments
from rucola.client.producer.send_request import SendResult, SendStatus
from rucola.client.trace_hooks import call_hook
from rucola.errors import BrokerError, InvalidMessage, RemotingError
from rucola.message import Message, MessageExt, properties, sysflag
from rucola.message.ids import parse_offset_msg_id
from rucola.message.message import V
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline

logger = logging.getLogger(__name__)

MAX_CHECKS = 2000
"""Checks of transactions that run at a time; further ones are ignored, as in Apache's client."""
MAX_THREADS = 32
"""Calls of plain functions that run at a time."""


class LocalTransactionState(Enum):
    """The outcome of a local transaction."""

    COMMIT_MESSAGE = sysflag.TRANSACTION_COMMIT
    ROLLBACK_MESSAGE = sysflag.TRANSACTION_ROLLBACK
    UNKNOW = sysflag.TRANSACTION_NOT
    """Unknown: the broker checks again later, at most transactionCheckMax times."""


Execute: TypeAlias = Callable[[Message], Awaitable[LocalTransactionState]] | Callable[[Message], LocalTransactionState]
"""Executes the local transaction: a coroutine function, or a plain function, which runs in a thread."""

Check: TypeAlias = (
    Callable[[MessageExt], Awaitable[LocalTransactionState]] | Callable[[MessageExt], LocalTransactionState]
)
"""Returns the outcome of a message's local transaction: a coroutine function, or a plain one, run in a thread."""


class TransactionSendResult(SendResult, frozen=True):
    """The position of the half message, and the outcome of its transaction."""

    state: LocalTransactionState


class TransactionProducer(Producer[V]):
    """Producer whose messages can depend on local transactions; it sends plain messages as well.

        async with TransactionProducer("group", "host:9876", check=look_up, topics=["Orders"]) as producer:
            result = await producer.send_in_transaction(Message("Orders", b"..."), book)

    `check` resolves transactions that stay open; `topics` are the topics of earlier transactions.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        check: Check,
        topics: Iterable[str] = (),
        **options: Unpack[ProducerArguments[V]],
    ) -> None:
        super().__init__(group, namesrv, **options)
        self.check = check
        self.topics = list(topics)
        self._checks = BackgroundTasks()
        self._threads = DaemonThreads(MAX_THREADS, f"transactions of {self.group}")

    async def _join(self) -> None:
        await super()._join()
        with suppress(RuntimeError):  # the first call says so
            self._threads.start()
        await self.instance.routes.find_all(self.topics)
        if self.topics:
            await self.instance.send_heartbeats()

    async def _leave(self) -> None:
        await run_close_steps(self._checks.close, super()._leave)
        self._threads.close()

    def _owns_task(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._checks or super()._owns_task(task)

    async def send_in_transaction(
        self, message: Message, execute: Execute, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> TransactionSendResult:
        """Send a half message, execute the local transaction, and end the message's transaction.

        `execute` gets the message with its unique key, if the half message is SEND_OK; otherwise it is rolled back.
        Raises the errors of `send` and of `execute`. If the end does not reach the broker, a transaction check resolves
        it. `timeout_ms` covers sending, and again the end, but not `execute`.
        """
        if message.delay_level:
            raise InvalidMessage(f"a transactional message for {message.topic} cannot have a delay level")
        added = {properties.TRAN_MSG: "true", properties.PGROUP: self.group}
        half = Message(
            message.topic,
            message.body,
            properties=message.properties | added,
            flag=message.flag,
            body_flags=message.body_flags,
        )
        with self._call():
            result = await self._send(half, None, Deadline(timeout_ms))
            message.unique_key = half.unique_key
            # If the half message is not SEND_OK.
            state, why = LocalTransactionState.ROLLBACK_MESSAGE, None
            try:
                if result.status is SendStatus.SEND_OK:
                    # If `execute` raises, the transaction stays open.
                    state, why = LocalTransactionState.UNKNOW, f"the local transaction of {self.group} failed"
                    state, why = _checked_state(await invoke(execute, message, self._threads)), None
            finally:
                await self._end(result, state, why, Deadline(timeout_ms))
                if (trace := self.options.trace) is not None:
                    address = self.instance.routes.address(result.queue.broker_name) or result.queue.broker_name
                    call_hook(trace.transaction_ended, self.group, half, address, state.name, from_check=False)
        return TransactionSendResult(
            result.status, result.msg_id, result.offset_msg_id, result.queue, result.queue_offset, state
        )

    async def _end(self, half: SendResult, state: LocalTransactionState, why: str | None, deadline: Deadline) -> None:
        """Send a transaction's outcome to the broker of its half message; only log failures."""
        _, physical_offset = parse_offset_msg_id(half.offset_msg_id)
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=state.value,
            msg_id=half.msg_id,
        )
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, header)
        command.remark = why
        in_flight = self._sender.in_flight
        try:
            connection = await self._sender.connection(half.queue, deadline)
            if state is LocalTransactionState.UNKNOW:  # brokers do not respond to it
                connection.send(command)
            else:
                response = await in_flight.wait_for_response(in_flight.post(connection, command, deadline))
                if response.code != ResponseCode.SUCCESS:
                    raise BrokerError(response.code, response.remark, half.queue.broker_name)
        except RemotingError as error:
            self._sender.record_failure(half.queue, error)
            logger.warning(
                "group %s: %s of transaction %s did not reach the broker, which will check it: %s",
                self.group, state.name, half.msg_id, error,
            )  # fmt: skip

    def check_transaction(
        self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        """Look up and send the outcome of a checked transaction, in the background."""
        if len(self._checks) >= MAX_CHECKS:
            return  # the broker checks again in a minute
        self._checks.start(self._run_check(connection, header, message), f"check of transaction {message.msg_id}")

    async def _run_check(
        self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        state, why = LocalTransactionState.UNKNOW, None
        try:
            state = _checked_state(await invoke(self.check, message, self._threads))
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
        if (trace := self.options.trace) is not None:
            call_hook(trace.transaction_ended, self.group, message, connection.peer, state.name, from_check=True)


def _checked_state(value: object) -> LocalTransactionState:
    """Return the result of a callback. TypeError if it is not a LocalTransactionState."""
    if not isinstance(value, LocalTransactionState):
        raise TypeError(f"a local transaction must return a LocalTransactionState, not {value!r}")
    return value
