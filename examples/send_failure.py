"""Every failure to send is a typed error that says what was tried; all of them are MQError.

It prints:

    InvalidMessage: a message for topic Orders has an empty body, which brokers reject
    RemotingConnectError
"""

from rucola.client.sync import Message, Producer
from rucola.errors import InvalidMessage, MQError, SendFailed

with Producer("shop") as producer:
    try:
        producer.send(Message("Orders", b""))
    except InvalidMessage as error:
        print(f"InvalidMessage: {error}")

with Producer("shop", namesrv="127.0.0.1:1") as producer:  # where nobody listens
    try:
        producer.send(Message("Orders", b"one pizza"))
    except SendFailed as error:  # there are brokers, but none took it: `attempts` has the queue and error of each try
        print(error.attempts)
    except MQError as error:
        print(type(error).__name__)
