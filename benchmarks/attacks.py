"""Attacks on a standalone server, each a row of `ATTACKS`, run in a process of its own over real sockets.

    python attacks.py NAME BROKER_PORT NAMESRV_PORT

An attack is a generator. Its preparation ends with the first `yield`, after which this program prints "ready"; then it
is resumed without a pause until stdin ends. It may send any bytes. The server may close its connections, or take long
to answer: an attack that raises an OSError because of that begins again, with new connections. At its end this program
prints how often that happened. To add an attack, write the generator and add a row.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from struct import pack

import frames
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.subscription import SubscriptionData
from rucola.protocol import pull
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, FrameDecoder
from rucola.protocol.offset import OffsetResponseHeader
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2

CANARY_TOPIC = "BenchCanary"
LARGE_TOPIC = "BenchLarge"
LARGE = 3_900_000
MEGA = 1 << 20
TIMEOUT_S = 30.0
"""Timeout of one send or receive of an attacker; a server under attack may take seconds."""
PREPARATION_S = 120.0
"""Time after which an attack that is not ready ends with its error."""


@dataclass(frozen=True)
class Target:
    """The ports of the attacked server."""

    broker: int
    namesrv: int


@dataclass(frozen=True)
class Attack:
    """One attack, with a short description for the table."""

    name: str
    does: str
    run: Callable[[Target], Iterator[None]]


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    """Return a connection; with a small receive buffer the server's buffer fills at once if nothing is read."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(TIMEOUT_S)
    sock.connect(("127.0.0.1", port))
    return sock


def held_pull(topic: str, tags: str, queue_id: int = 0, queue_offset: int = 0) -> bytes:
    """PULL_MESSAGE that is held for ten minutes."""
    header = PullMessageRequestHeader(
        consumer_group="attacker",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=pull.SUBSCRIPTION | pull.SUSPEND,
        suspend_timeout_millis=600_000,
        subscription=tags,
        expression_type="TAG",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header).encode()


def large_message() -> bytes:
    """SEND_MESSAGE_V2 of the largest message that a client sends by default."""
    header = SendMessageRequestHeaderV2(
        producer_group="attacker", topic=LARGE_TOPIC, queue_id=0, sys_flag=0, born_timestamp=1, flag=0
    )
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, bytes(LARGE)).encode()


def joining(group: str, client_id: str) -> bytes:
    """HEART_BEAT of a member of a group."""
    consumer = ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic=CANARY_TOPIC)])
    body = encode_body(HeartbeatData(client_id=client_id, consumer_data_set=[consumer]))
    return RemotingCommand.request(RequestCode.HEART_BEAT, body=body).encode()


def receive_frame(sock: socket.socket) -> bytes:
    """Read one response, and return its frame."""
    head = receive(sock, 4)
    return head + receive(sock, int.from_bytes(head, "big"))


def receive(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes. ConnectionError if the server closes the connection before."""
    data = b""
    while len(data) < size:  # MSG_WAITALL has no effect on a socket with a timeout
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += piece
    return data


def queue_end(sock: socket.socket, topic: str, queue_id: int) -> int:
    """Return the end of a queue."""
    sock.sendall(frames.max_offset(topic, queue_id))
    (answer,) = FrameDecoder().receive_data(receive_frame(sock))
    return answer.decode_header(OffsetResponseHeader).offset


def pause(seconds: float) -> None:
    time.sleep(seconds)


# The attacks.


def held_pulls(target: Target) -> Iterator[None]:
    """30,000 held pulls at the ends of the canary's queues that never match."""
    sockets = [connect(target.broker) for _ in range(5)]
    ends = [queue_end(sockets[0], CANARY_TOPIC, queue_id) for queue_id in range(frames.QUEUES)]
    for sock in sockets:
        queues = (number % frames.QUEUES for number in range(6000))
        sock.sendall(b"".join(held_pull(CANARY_TOPIC, "Never", queue_id, ends[queue_id]) for queue_id in queues))
    pause(3)
    while True:
        yield
        pause(0.1)


def rejected_pulls(target: Target) -> Iterator[None]:
    """Pulls from the begin of the canary's queues that never match, repeated as soon as they are answered."""
    sockets = [connect(target.broker) for _ in range(5)]
    pulls = b"".join(held_pull(CANARY_TOPIC, "Never", number % frames.QUEUES) for number in range(600))
    while True:
        for sock in sockets:
            sock.sendall(pulls)
        for sock in sockets:
            for _ in range(600):
                receive_frame(sock)
        yield


def deaf_pulls(target: Target) -> Iterator[None]:
    """150 held pulls each of 10 peers that never read; then large messages for all of them."""
    sender = connect(target.broker)
    peers: list[socket.socket] = []
    while True:
        end = queue_end(sender, LARGE_TOPIC, 0)
        for _ in range(10):
            with suppress(OSError):
                peer = connect(target.broker, 4096)
                peer.sendall(b"".join(held_pull(LARGE_TOPIC, "*", 0, end) for _ in range(150)))
                peers.append(peer)
        pause(0.3)
        sender.sendall(large_message())
        receive_frame(sender)
        while len(peers) > 20:
            peers.pop(0).close()
        yield
        pause(0.5)


def deaf_members(target: Target) -> Iterator[None]:
    """20 members of a group that never read, while another one joins and leaves."""
    peers = []
    for number in range(20):
        peer = connect(target.broker, 4096)
        peer.sendall(joining("deaf", f"deaf-{number}"))
        peers.append(peer)
    while True:
        yield
        with suppress(OSError), connect(target.broker) as member:
            member.sendall(joining("deaf", "restless"))
            receive_frame(member)


def partial_frames(target: Target) -> Iterator[None]:
    """30 connections that send all but the last byte of a frame of 16 MB, again and again."""
    yield from _partial_frames(target.broker)


def partial_frames_of_the_name_server(target: Target) -> Iterator[None]:
    """Like `partial_frames`, to the name server."""
    yield from _partial_frames(target.namesrv)


def _partial_frames(port: int) -> Iterator[None]:
    piece = bytes(MEGA)
    peers: dict[socket.socket, int] = {}
    ready_at_s = time.monotonic() + 3
    while True:
        for _ in range(30 - len(peers)):
            with suppress(OSError):
                peer = connect(port)
                peer.sendall(pack(">I", MAX_FRAME_SIZE))
                peer.setblocking(False)
                peers[peer] = 4
        for peer, sent in list(peers.items()):
            try:
                if left := MAX_FRAME_SIZE + 3 - sent:
                    peers[peer] += peer.send(piece[:left])
                elif not peer.recv(1):
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                del peers[peer]
                peer.close()
        if time.monotonic() > ready_at_s:
            yield
        pause(0.01)


def idle_connections(target: Target) -> Iterator[None]:
    """10,000 connections that do nothing."""
    sockets = []
    for _ in range(10_000):
        with suppress(OSError):
            sockets.append(connect(target.broker))
    while True:
        yield
        pause(0.1)


def slow_headers(target: Target) -> Iterator[None]:
    """2,000 connections that send a heartbeat byte by byte, to both servers."""
    frame = joining("slow", "slow")[:-1]
    sockets = [connect(port) for port in (target.broker, target.namesrv) for _ in range(1000)]
    position = 0
    while True:
        byte = frame[position : position + 1]
        for sock in sockets:
            with suppress(OSError):
                if byte:
                    sock.send(byte)
        position += 1
        yield
        pause(0.2)


def reconnecting(target: Target) -> Iterator[None]:
    """Connections that are opened and closed as fast as possible, 64 at a time."""
    while True:
        with selectors.DefaultSelector() as poll:
            sockets = []
            for _ in range(64):
                sock = socket.socket()
                sock.setblocking(False)
                with suppress(OSError):
                    sock.connect_ex(("127.0.0.1", target.broker))
                poll.register(sock, selectors.EVENT_WRITE)
                sockets.append(sock)
            poll.select(0.1)
            for sock in sockets:
                sock.close()
        yield


def tolerant_headers(target: Target) -> Iterator[None]:
    """One-way requests on five connections, with headers that only Python decodes, as slowly as possible."""
    nested = b"{code:%d,flag:2,extFields:{a:%s1%s}}" % (RequestCode.HEART_BEAT, b"[" * 60 + b"1," * 1900, b"]" * 60)
    flood = (pack(">II", 4 + len(nested), len(nested)) + nested) * 64
    sockets = [connect(target.broker) for _ in range(5)]
    while True:
        yield
        for sock in sockets:
            sock.sendall(flood)


def unreadable_frames(target: Target) -> Iterator[None]:
    """Frames without a header, as many as one read of the server has."""
    flood = pack(">II", 4, 0) * 32_768
    while True:
        yield
        with suppress(OSError), connect(target.broker) as sock:
            sock.sendall(flood)
            receive(sock, 1)


ATTACKS = (
    Attack("held_pulls", "30,000 held pulls that never match", held_pulls),
    Attack("rejected_pulls", "pulls that match nothing, on five connections", rejected_pulls),
    Attack("deaf_pulls", "10 peers with 150 held pulls each, which never read messages of 3.9 MB", deaf_pulls),
    Attack("deaf_members", "20 members that never read are notified", deaf_members),
    Attack("partial_frames", "30 frames of 16 MB without the last byte", partial_frames),
    Attack("partial_frames_namesrv", "the same to the name server", partial_frames_of_the_name_server),
    Attack("idle_connections", "10,000 idle connections", idle_connections),
    Attack("slow_headers", "2,000 frames, byte by byte", slow_headers),
    Attack("reconnecting", "connections opened and closed", reconnecting),
    Attack("tolerant_headers", "headers that only Python decodes, on five connections", tolerant_headers),
    Attack("unreadable_frames", "reads full of frames without a header", unreadable_frames),
)


def main() -> None:
    name, broker, namesrv = sys.argv[1:]
    # In reality the attacker is on another machine: it gets what the canary leaves.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    (attack,) = [attack for attack in ATTACKS if attack.name == name]
    target = Target(int(broker), int(namesrv))
    ready_by_s = time.monotonic() + PREPARATION_S
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    steps, begun_anew, is_ready = attack.run(target), 0, False
    while not ended.is_set():
        try:
            next(steps)
        except OSError:
            if not is_ready and time.monotonic() > ready_by_s:
                raise
            pause(0.1)
            steps = attack.run(target)
            begun_anew += 1
        else:
            if not is_ready:
                print("ready", flush=True)
                is_ready = True
    print(begun_anew)


if __name__ == "__main__":
    main()
