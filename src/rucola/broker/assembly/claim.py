"""Claim of a mastership when a master starts."""

from __future__ import annotations

import logging

from rucola.broker.background.registration import Registration
from rucola.broker.mastership import Mastership

logger = logging.getLogger(__name__)


async def claim_mastership(mastership: Mastership, registration: Registration, *, is_promotion: bool) -> None:
    """Begin the epoch after the last one of the log, or fence this broker.

    It is fenced if a name server has a master of that epoch or a newer one, unless an operator has made this former
    slave master (`is_promotion`): then it begins an epoch after the other master's, which is fenced at its next
    registration. Name servers that do not respond do not count.
    """
    registration.mastership = mastership
    own = mastership.epochs.last.number
    newest, address = await registration.newest_master(own + 1)
    if newest <= own:
        mastership.begin(own + 1)
    elif is_promotion or address == registration.address:
        if is_promotion:
            logger.warning("promoted: %s was master in epoch %d, and must not serve as master again", address, newest)
        mastership.begin(newest + 1)
    else:
        mastership.fence(newest, address)
