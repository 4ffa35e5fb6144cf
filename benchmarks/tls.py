"""TLS: its cost per message, per connection and for replication, at a broker with TLS and plain text on one port."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Figure, median
from floors import Options
from load import READ_SIZE, Run, answer_to, drive
from rucola import settings
from rucola.cli.certificates import CertificateDirectory
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.replication import TransferDecoder, encode_report
from servers import Server, standalone
from stored import check_stored, fill

TOPIC = "BenchTls"
FRAMES = 1024
COUNT_1, COUNT_16, HANDSHAKES = 8_000, 24_000, 500
REPLICATED = 64 * 2048
"""Messages of the log that is copied, 1 KB each."""


def measure(options: Options) -> list[Figure]:
    """Measure the same sends by TLS and in plain text, in alternating rounds, on one and on sixteen connections."""
    sends = [frames.send(TOPIC, number) for number in range(FRAMES)]
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        CertificateDirectory(folder / "tls").create([], 1)
        conf = f"tls.config.file={folder / 'tls' / 'server.properties'}\ntls.server.mode=permissive\n"
        context = ssl.create_default_context(cafile=folder / "tls" / "ca.pem")
        with standalone(folder / "store", conf=conf) as broker:
            answer_to(broker, sends[0])  # creates the topic
            figures, count = [], 1
            for connections, full in ((1, COUNT_1), (16, COUNT_16)):
                plain, secured = _in_turns(broker, sends, options.count(full), options.rounds, connections, context)
                figures.append(_figure(f"tls_send_{connections}_connection{'s' * (connections > 1)}", plain, secured))
                count += sum(run.count for run in (*plain, *secured)) + 2 * (options.count(full) // 4)
            check_stored(broker, TOPIC, count)
            figures.append(_handshakes(broker, context, options.count(HANDSHAKES), options.rounds))
            fill(broker, f"{TOPIC}Log", max(1, options.count(REPLICATED) // 2048) * 2048)
            figures.append(_replication(broker, context, options.rounds))
    return figures


def _in_turns(
    broker: Server, sends: list[bytes], count: int, rounds: int, connections: int, context: ssl.SSLContext
) -> tuple[list[Run], list[Run]]:
    plain: list[Run] = []
    secured: list[Run] = []
    for kind in (None, context):
        drive(broker, sends, count // 4, connections=connections, context=kind)
    for _ in range(rounds):
        plain.append(drive(broker, sends, count, connections=connections))
        secured.append(drive(broker, sends, count, connections=connections, context=context))
    return plain, secured


def _figure(name: str, plain: list[Run], secured: list[Run]) -> Figure:
    return Figure(
        name,
        median(lambda run: run.cpu_us, secured),
        "µs CPU/message",
        floor=median(lambda run: run.cpu_us, plain),
        floor_is="the same in plain text, same broker",
        ratios=[one.cpu_us / other.cpu_us for one, other in zip(secured, plain, strict=True)],
        more={
            "messages/s": median(lambda run: run.rate, secured),
            "p99_ms": median(lambda run: run.latency_ms(99), secured),
            "least_µs": min(run.cpu_us for run in secured),
            "least_µs_in_plain_text": min(run.cpu_us for run in plain),
        },
    )


def _handshakes(broker: Server, context: ssl.SSLContext, count: int, rounds: int) -> Figure:
    """Return the broker's CPU for a connection that is opened and closed without a request."""

    def connections(kind: ssl.SSLContext | None) -> float:
        begin_ns = broker.cpu_ns()
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", broker.port)) as plain:
                if kind is None:
                    plain.sendall(b"\0")  # the broker decides between TLS and plain text by the first byte
                else:
                    kind.wrap_socket(plain, server_hostname="127.0.0.1").close()
        return (broker.cpu_ns() - begin_ns) / count / 1e3

    for kind in (None, context):
        connections(kind)
    turns = [(connections(None), connections(context)) for _ in range(rounds)]
    return Figure(
        "tls_connection",
        median(lambda turn: turn[1], turns),
        "µs CPU/connection",
        floor=median(lambda turn: turn[0], turns),
        floor_is="a connection in plain text, same broker",
        more={"least_µs": min(secured for _, secured in turns)},
    )


def _replication(broker: Server, context: ssl.SSLContext, rounds: int) -> Figure:
    """CPU of the master for each MiB of its log that a slave without one gets."""
    config = answer_to(broker, RemotingCommand.request(RequestCode.GET_BROKER_CONFIG).encode()).body
    port = int(settings.parse(config.decode())["haListenPort"])
    info = answer_to(broker, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO).encode()).body
    size = int(json.loads(info)["table"]["commitLogMaxOffset"])

    def copy(kind: ssl.SSLContext | None) -> float:
        begin_ns = broker.cpu_ns()
        with socket.create_connection(("127.0.0.1", port)) as slave:
            if kind is not None:
                slave = kind.wrap_socket(slave, server_hostname="127.0.0.1")
            slave.sendall(encode_report(0))
            decoder, received = TransferDecoder(), 0
            while received < size:
                received += sum(len(piece) for _, piece in decoder.receive_data(slave.recv(READ_SIZE)))
        return (broker.cpu_ns() - begin_ns) / size * 2**20 / 1e3

    for kind in (None, context):
        copy(kind)
    turns = [(copy(None), copy(context)) for _ in range(rounds)]
    return Figure(
        "tls_replication",
        median(lambda turn: turn[1], turns),
        "µs CPU/MiB",
        floor=median(lambda turn: turn[0], turns),
        floor_is="the same log in plain text, from the same master",
        ratios=[secured / plain for plain, secured in turns],
        more={
            "MiB": size / 2**20,
            "least_µs": min(secured for _, secured in turns),
            "least_µs_in_plain_text": min(plain for plain, _ in turns),
        },
    )
