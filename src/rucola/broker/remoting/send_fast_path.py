"""SendFastPath: sends of the usual form, from the bytes of a read to the responses.

The interpreter's code is cold when a client that waits for each response sends its next message, so that each function
on the way costs about half a microsecond. The accelerator therefore decodes frame, header and properties in one call,
and what a message of an existing topic does not need is left out: command, typed header, and their processor. It saves
a seventh of the CPU time of a send (benchmarks/README.md).

Everything else takes the usual path, and so does every message that is refused: the fast path has no error of its own.
It has no place for what waits between a request and its response, nor for access control: see `fast_path_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rucola import speed
from rucola.access import Action, Caller, Check, Interceptor, Resource
from rucola.broker.remoting.send import SendAnswers
from rucola.broker.services.publish import PublishService
from rucola.broker.state import BrokerState
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE
from rucola.remoting.read_hooks import FastPath

MAX_SENDS: Final = 64
"""Messages of one read that are stored without a turn for other connections, as `connection.UNSLICED`."""


class SendFastPath:
    """The fast path of one broker. Belongs to the event loop."""

    def __init__(self, publish: PublishService, state: BrokerState, checks: list[Check]) -> None:
        self._editing = publish.editing
        self._put = publish.put_at_once
        self._collect = state.store.collect_puts
        self._formatted = SendAnswers(state.config).formatted
        self._checks = checks

    def serve(self, caller: Caller, data: memoryview) -> tuple[bytes, int]:
        """Return the responses, and the position behind the last frame that was served; see `FastPath`."""
        if speed.usual_sends is None:
            return b"", 0
        sends = speed.usual_sends(data, MAX_FRAME_SIZE, MAX_HEADER_SIZE, *self._editing, MAX_SENDS)
        if not sends:
            return b"", 0
        responses: list[bytes] = []
        served = 0
        if len(sends) > 1:
            self._collect(True)
        try:
            for opaque, send, end in sends:
                resource = Resource(send[0])
                for check in self._checks:
                    check(caller, resource)
                published = self._put(caller, send)
                if published is None:
                    break
                responses.append(self._formatted(opaque, published))
                served = end
        except Exception:  # noqa: S110 - the usual path raises it again, and answers it
            pass
        finally:
            if len(sends) > 1:
                self._collect(False)
        return b"".join(responses), served


def fast_path_of(publish: PublishService, state: BrokerState, chain: Iterable[Interceptor]) -> FastPath | None:
    """Return the fast path of a broker without access control and with these interceptors.

    None if its responses wait until messages are durable.
    """
    if publish.waits:
        return None
    checks = [check for interceptor in chain if (check := interceptor.check_for(Action.PUBLISH)) is not None]
    return SendFastPath(publish, state, checks).serve
