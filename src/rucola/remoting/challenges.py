"""GET_CHALLENGE (20100), the first request with signatures of version 2 (`rucola.acl.challenge`)."""

from __future__ import annotations

from typing import Final

from rucola.access import Action
from rucola.acl.challenge import Challenge
from rucola.protocol.access import GetChallengeResponseHeader
from rucola.protocol.codes import RequestCode
from rucola.remoting.connection import Reply
from rucola.remoting.endpoints import Endpoint, Request


def _challenge(request: Request[None]) -> Reply:
    challenge = request.connection.challenge = Challenge.random()
    return request.success(GetChallengeResponseHeader(challenge=challenge.text))


CHALLENGE_ENDPOINT: Final = Endpoint(RequestCode.GET_CHALLENGE, Action.AUTHENTICATE, _challenge)
"""For every server, with or without access control."""
