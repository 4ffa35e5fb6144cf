"""RequestFastPath: usual sends, batches and pulls, from bytes to bytes.

The interpreter's code is cold when a client that waits for each response sends its next request, so that each function
on the way costs about half a microsecond. The accelerator therefore decodes frame, header and properties in one call,
and what these requests do not need is left out: their command, their processor, and the typed header of a send. It
saves a seventh of the CPU time of a send, and the copy of a batch (benchmarks/README.md).

Everything else takes the usual path: other requests and forms, and what a service leaves to it before anything is
stored. Refusals and errors are answered as there, so that each request is processed, and counted, once. There is no
place for sends that wait between request and response, nor for access control.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rucola import speed
from rucola.access import Action, Check, Interceptor, Resource
from rucola.broker.remoting.pull import PullAdapter
from rucola.broker.remoting.send import SendAnswers
from rucola.broker.services.publish import UNSLICED_MESSAGES, PublishService
from rucola.broker.state import BrokerState
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE
from rucola.remoting.connection import UNSLICED, WRITE_LIMIT, Connection, FastPath
from rucola.remoting.refusals import error_response
from rucola.speed import UsualRequest

_SEND, _PULL = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.PULL_MESSAGE)


class RequestFastPath:
    """The fast path of one broker. Belongs to the event loop."""

    def __init__(
        self,
        usual_requests: Callable[..., list[UsualRequest] | None],
        publish: PublishService,
        pulls: PullAdapter,
        state: BrokerState,
        publish_checks: list[Check],
        fetch_checks: list[Check],
    ) -> None:
        self._usual = usual_requests
        self._editing = publish.editing
        self._put, self._put_batch = publish.put_at_once, publish.put_batch_at_once
        self._collect = state.store.collect_puts
        self._formatted = SendAnswers(state.config).formatted
        self._answer = pulls.pull_at_once
        self._publish_checks = publish_checks
        self._fetch_checks = fetch_checks

    def serve(self, connection: Connection, data: memoryview) -> tuple[bytes, int]:
        """Return the responses, and the position behind the last request that was served; see `ReadHooks`.

        Ends behind the response that exceeds WRITE_LIMIT, and after UNSLICED requests: the rest of the read takes the
        usual path, where it waits for the peer to read, and for its turn.
        """
        requests = self._usual(data, MAX_FRAME_SIZE, MAX_HEADER_SIZE, *self._editing, UNSLICED, UNSLICED_MESSAGES)
        if not requests:
            return b"", 0
        is_deep = len(requests) == UNSLICED  # there may be more: pulls then need slices from the first one on
        responses: list[bytes] = []
        served = size = 0
        caller = connection.caller
        if len(requests) > 1:
            self._collect(True)
        try:
            for code, opaque, request, end in requests:
                try:  # written out, since each function on the way of a request costs
                    if code == _PULL:
                        if is_deep:
                            break
                        resource = Resource(request[1], request[0])
                        for check in self._fetch_checks:
                            check(caller, resource)
                        response = self._answer(connection, opaque, request)
                    else:
                        resource = Resource(request[0])
                        for check in self._publish_checks:
                            check(caller, resource)
                        published = (self._put if code == _SEND else self._put_batch)(caller, request)
                        if published is None:
                            break
                        response = self._formatted(opaque, published)
                except Exception as error:
                    command = RemotingCommand(code, {}, opaque=opaque)
                    response = error_response(connection.peer, command, error).encode()
                responses.append(response)
                served = end
                size += len(response)
                if size > WRITE_LIMIT:
                    break
        finally:
            if len(requests) > 1:
                self._collect(False)
        return b"".join(responses), served


def fast_path_of(
    publish: PublishService, pulls: PullAdapter, state: BrokerState, chain: Sequence[Interceptor]
) -> FastPath | None:
    """Return the fast path of a broker without access control and with these interceptors.

    None without the accelerator, or if responses to sends wait until messages are durable.
    """
    usual_requests = speed.usual_requests
    if usual_requests is None or publish.waits:
        return None
    checks = {
        action: [check for interceptor in chain if (check := interceptor.check_for(action)) is not None]
        for action in (Action.PUBLISH, Action.FETCH)
    }
    serving = RequestFastPath(usual_requests, publish, pulls, state, checks[Action.PUBLISH], checks[Action.FETCH])
    return serving.serve
