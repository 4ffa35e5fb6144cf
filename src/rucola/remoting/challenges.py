"""GET_CHALLENGE (20100), the first request with signatures of version 2 (`rucola.acl.challenge`)."""

from __future__ import annotations

from typing import Any, Final

from rucola.access import Action, Caller
from rucola.acl.challenge import Challenge
from rucola.protocol.access import GetChallengeResponseHeader
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import Endpoint


def _challenge(connection: Connection, caller: Caller, command: RemotingCommand, request: Any) -> Reply:
    connection.challenge = Challenge.random()
    return command.response(ResponseCode.SUCCESS, GetChallengeResponseHeader(challenge=connection.challenge.text))


CHALLENGE_ENDPOINT: Final = Endpoint(RequestCode.GET_CHALLENGE, Action.AUTHENTICATE, _challenge)
"""For every server, with or without access control."""
