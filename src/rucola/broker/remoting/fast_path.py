"""RequestFastPath: usual sends, batches and pulls, from bytes to bytes.

All sends and batches at the start of a read are one call in C, from their frames to the records and responses, and one
put of all records. The frames of pulls are decoded together, without commands and processors: each function on the way
costs about half a microsecond when the interpreter's code is cold. Figures are in benchmarks/README.md.

Everything else uses the usual path: other requests and forms, and sends that a check or the disk refuses. Refusals and
errors of pulls are answered here as there, so that each request is processed, and counted, once. Access control and
waits for durability are not supported.

Any other error is a bug here, which is logged and counted (rocketmq_fast_path_errors_total). Requests that were not put
yet use the usual path; if they may have been put, the connection is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from rucola import speed
from rucola.access import Action, Check, Interceptor, Refused, Resource
from rucola.broker.remoting.pull import PullAdapter
from rucola.broker.remoting.send import SendAnswers
from rucola.broker.services.publish import UNSLICED_MESSAGES, PublishService
from rucola.broker.state import BrokerState
from rucola.message.host import encode_host
from rucola.message.record import LARGE_BODY
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE
from rucola.remoting.connection import UNSLICED, WRITE_LIMIT, Connection, FastPath
from rucola.remoting.refusals import error_response
from rucola.remoting.seldom_lines import log_seldom
from rucola.speed import EncodedSends, UsualPull

logger = logging.getLogger(__name__)

_SEND: Final = b'{"code":3'
"""Start of the header of a usual send (310) or batch (320), and of no pull (11)."""
_HEADER: Final = slice(8, 8 + len(_SEND))
_NOTHING: Final = (b"", 0, 0)


class RequestFastPath:
    """The fast path of one broker. Belongs to the event loop."""

    def __init__(
        self,
        read_pulls: Callable[..., list[tuple[int, UsualPull, int]] | None],
        encode_sends: Callable[..., EncodedSends | None],
        publish: PublishService,
        pulls: PullAdapter,
        state: BrokerState,
        checks: dict[Action, list[Check]],
    ) -> None:
        self._read_pulls = read_pulls
        self._encode = encode_sends
        self._sending = (
            *(MAX_FRAME_SIZE, MAX_HEADER_SIZE, *publish.editing),
            state.topics.by_name,
            state.config.store_host,
            SendAnswers(state.config).form_parts,
        )
        self._config, self._store_config = state.config, state.store.config
        self._put_position, self._put_encoded = state.store.put_position, state.store.put_encoded
        self._clock, self._stats, self._put_durations = state.clock, state.stats, state.stats.put_durations
        self._answer = pulls.pull_at_once
        self._publish_checks, self._fetch_checks = checks[Action.PUBLISH], checks[Action.FETCH]

    def serve(self, connection: Connection, data: memoryview) -> tuple[bytes, int]:
        """Return the responses, and the position after the last request that was served; see `ReadHooks`.

        Ends after the response that exceeds WRITE_LIMIT, and after UNSLICED requests: the rest uses the usual path.
        """
        response, served, count = self._serve_some(connection, data, UNSLICED)
        if served == len(data) or not count:
            return response, served
        responses, size = [response], len(response)
        while count < UNSLICED and size <= WRITE_LIMIT:
            response, end, number = self._serve_some(connection, data[served:], UNSLICED - count)
            if not number:
                break
            responses.append(response)
            served += end
            count += number
            size += len(response)
        return b"".join(responses), served

    def _serve_some(self, connection: Connection, data: memoryview, max_count: int) -> tuple[bytes, int, int]:
        """Serve up to `max_count` requests of one kind; return responses, end position and count."""
        if bytes(data[_HEADER]) == _SEND:
            return self._serve_sends(connection, data, max_count)
        return self._serve_pulls(connection, data, max_count)

    def _serve_sends(self, connection: Connection, data: memoryview, max_count: int) -> tuple[bytes, int, int]:
        caller = connection.caller
        if (position := self._put_position()) is None:
            return _NOTHING
        now_ms = self._clock()
        try:
            encoded = self._encode(
                data,
                max_count,
                self._sending,
                min(self._store_config.max_message_size, LARGE_BODY - 1),
                self._config.max_keys_per_message,  # longer KEYS can be too many
                min(self._config.max_messages_per_batch, UNSLICED_MESSAGES),
                *position,
                now_ms,
                encode_host(caller.address),
            )
            if encoded is None:
                return _NOTHING
            records, responses, requests, next_offsets, count, end = encoded
            for topic in {request[0] for request in requests}:
                resource = Resource(topic)
                for check in self._publish_checks:
                    check(caller, resource)
        except Refused:  # the usual path meets it again, and answers it
            return _NOTHING
        except Exception as error:
            self._count_bug(connection, error)
            return _NOTHING
        try:
            self._put_encoded(records, requests, next_offsets, now_ms)
        except OSError:  # as a refusal
            return _NOTHING
        except Exception as error:
            self._count_bug(connection, error)
            connection.close()
            return b"", len(data), count
        if (duration_ms := self._clock() - now_ms) > 0:
            self._put_durations.record(duration_ms)
        return responses, end, count

    def _count_bug(self, connection: Connection, error: Exception) -> None:
        self._stats.fast_path_errors += 1
        kind = f"fast path: {type(error).__name__}"
        log_seldom(logger, logging.ERROR, kind, "%s: the fast path failed", connection.peer, error=error)

    def _serve_pulls(self, connection: Connection, data: memoryview, max_count: int) -> tuple[bytes, int, int]:
        pulls = self._read_pulls(data, MAX_FRAME_SIZE, MAX_HEADER_SIZE, max_count)
        if not pulls or len(pulls) == max_count:  # there may be more: they need slices from the first one on
            return _NOTHING
        responses: list[bytes] = []
        served = size = 0
        caller = connection.caller
        for opaque, pull, end in pulls:
            try:
                resource = Resource(pull[1], pull[0])
                for check in self._fetch_checks:
                    check(caller, resource)
                response = self._answer(connection, caller, opaque, pull)
            except Exception as error:
                command = RemotingCommand(RequestCode.PULL_MESSAGE, {}, opaque=opaque)
                response = error_response(connection.peer, command, error).encode()
            responses.append(response)
            served = end
            size += len(response)
            if size > WRITE_LIMIT:
                break
        return b"".join(responses), served, len(responses)


def fast_path_of(
    publish: PublishService, pulls: PullAdapter, state: BrokerState, chain: Sequence[Interceptor]
) -> FastPath | None:
    """Return the fast path; None with access control, other interceptors, durable sends, or no accelerator."""
    if speed.read_pulls is None or speed.encode_sends is None or publish.waits:
        return None
    checks = {
        action: [check for interceptor in chain if (check := interceptor.check_for(action)) is not None]
        for action in (Action.PUBLISH, Action.FETCH)
    }
    return RequestFastPath(speed.read_pulls, speed.encode_sends, publish, pulls, state, checks).serve
