"""What a slave refuses: everything that would make its log or its tables other than its master's.

    sends, batches, replies, messages given back       SERVICE_NOT_AVAILABLE
    ends of transactions                               SLAVE_NOT_AVAILABLE
    changes of topics and groups                       SYSTEM_ERROR

Offsets that consumers commit are taken, as Apache's slave takes them: while the master is away somebody has to, and
afterwards the master's come in their place.

Answers to the checks for BrokerRole.SLAVE in `DefaultMessageStore`, `EndTransactionProcessor` and
`AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: a message that is given back is refused with the
code that other messages are, where Apache says SYSTEM_ERROR.
"""

from __future__ import annotations

from rucola.broker.background.registration import Registration
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Processor, Reply


class SlaveProcessor:
    """Refuses, and names the master where a name server has said who that is."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.SEND_MESSAGE: self.refuse_message,
            RequestCode.SEND_MESSAGE_V2: self.refuse_message,
            RequestCode.SEND_BATCH_MESSAGE: self.refuse_message,
            RequestCode.SEND_REPLY_MESSAGE: self.refuse_message,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.refuse_message,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.refuse_message,
            RequestCode.END_TRANSACTION: self.refuse_end_of_transaction,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.refuse_change,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.refuse_change,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.refuse_change,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.refuse_change,
        }

    def refuse_message(self, connection: Connection, command: RemotingCommand) -> Reply:
        return self._refusal(
            command, ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave and takes no messages"
        )

    def refuse_end_of_transaction(self, connection: Connection, command: RemotingCommand) -> Reply:
        return self._refusal(
            command, ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave and ends no transactions"
        )

    def refuse_change(self, connection: Connection, command: RemotingCommand) -> Reply:
        return self._refusal(
            command,
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
        )

    def _refusal(self, command: RemotingCommand, code: ResponseCode, why: str) -> RemotingCommand:
        return command.response(
            code, remark=f"{why}; its master is {self._registration.master_address or 'not known yet'}"
        )
