"""Claim of a mastership when a master starts.

The result is the epoch that it begins, or the reason why it may not.
"""

from __future__ import annotations

import logging

from rucola.broker.background.registration import Registration
from rucola.broker.mastership import Mastership

logger = logging.getLogger(__name__)


async def claim_mastership(mastership: Mastership, registration: Registration, *, is_promotion: bool) -> None:
    """Begin the epoch after the last one of the log, or fence this broker.

    This broker is fenced if a name server knows a master of that epoch or a newer one. But if it was a slave before,
    and an operator has made it master (`is_promotion`), it begins an epoch after that of the other master, which is
    fenced instead when it registers the next time. A name server that does not respond does not count.
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
