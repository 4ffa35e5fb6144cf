"""Authentication of a slave by its master on the replication connection.

Apache's protocol has none: every peer that reaches haListenPort gets the whole log. With access control on both sides,
a slave proves, before its first report, that it has the secret key of an account with UPDATE on the cluster (ACL 1.0:
an admin):

    slave  -> master   8  the number HELLO, which no report is, since it is negative
                       2  size, and the access key
    master -> slave   32  a random challenge
    slave  -> master  32  HMAC-SHA256 of the challenge and the access key, with the secret key

Integers are big-endian. A proof is valid for its connection only, and is no signature of a request. A slave of Apache
needs an address among the master's global white addresses. A slave with access control cannot follow a master of
Apache. Without access control, a master accepts both kinds of slaves.
"""

from __future__ import annotations

import secrets
from struct import Struct
from typing import Final

from rucola import refusals
from rucola.access import Action, Caller, Refused, Resource
from rucola.acl.access_control import AccessControl
from rucola.acl.credentials import Credentials
from rucola.broker.replication.ha_handshake import read_exactly
from rucola.errors import RemotingConnectError
from rucola.remoting.byte_stream import Stream

HELLO: Final = -int.from_bytes(b"rucolaHA", "big")
CHALLENGE_SIZE: Final = 32
PROOF_SIZE: Final = 32
MAX_ACCESS_KEY_SIZE: Final = 1024

_REPORT: Final = Struct(">q")
_SIZE: Final = Struct(">H")


async def prove(stream: Stream, credentials: Credentials, timeout_ms: int) -> None:
    """Prove the identity of this slave. Raises RemotingConnectError if the master does not respond."""
    access_key = credentials.access_key.encode("utf-8")
    await stream.write(_REPORT.pack(HELLO) + _SIZE.pack(len(access_key)), access_key)
    challenge = await read_exactly(stream, CHALLENGE_SIZE, timeout_ms)
    await stream.write(credentials.proof(challenge))


async def admit(stream: Stream, control: AccessControl | None, timeout_ms: int) -> bytes:
    """Authenticate a slave; return the bytes read of its first report. Raises Refused, RemotingConnectError."""
    first = await read_exactly(stream, _REPORT.size, timeout_ms)
    caller = Caller(stream.peer, None, stream.certificate)
    if _REPORT.unpack(first) != (HELLO,):
        if control is not None and not control.is_white(caller.host):
            raise Refused(refusals.SLAVE_NOT_AUTHENTICATED)
        return first
    (size,) = _SIZE.unpack(await read_exactly(stream, _SIZE.size, timeout_ms))
    if size > MAX_ACCESS_KEY_SIZE:
        raise RemotingConnectError(f"an access key of {size} bytes")
    access_key = str(await read_exactly(stream, size, timeout_ms), "utf-8", "replace")
    challenge = secrets.token_bytes(CHALLENGE_SIZE)
    await stream.write(challenge)
    proof = await read_exactly(stream, PROOF_SIZE, timeout_ms)
    if control is not None:
        user = control.authenticate_peer(access_key, challenge, proof)
        control.check_for(Action.REPLICATE)(caller.as_user(user), Resource())
    return b""
