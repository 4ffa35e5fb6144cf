"""TLS: its cost per message and per connection, at a broker with TLS and plain text on one port."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Figure, median
from floors import Options
from load import Run, answer_to, drive
from rucola.cli.certificates import CertificateDirectory
from servers import Server, standalone
from stored import check_stored

TOPIC = "BenchTls"
FRAMES = 1024
COUNT_1, COUNT_16, HANDSHAKES = 8_000, 24_000, 500


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
