"""Access control: cost of signed sends beside unsigned ones at a broker without access control.

With 64 requests in flight a broker spends so little on each that the signature of 1 KB alone takes a fifth of it. That
figure has no aim; `hmac_µs` beside it is what OpenSSL's SHA-1 takes for the same content.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure, median
from floors import Options
from load import Run, answer_to, drive
from rucola.acl.credentials import Credentials
from rucola.acl.signature import signed_text
from rucola.client import Message, Producer
from rucola.protocol.frame import FrameDecoder
from servers import Server, standalone
from stored import check_stored

TOPIC = "BenchSigned"
FRAMES = 1024
COUNT_1, COUNT_64, COUNT_CLIENT = 8_000, 48_000, 8_000
KEYS = Credentials("benchmark", "secret of the benchmark")
ACCOUNTS = """
accounts:
  - {accessKey: operator, secretKey: secret of the operator, admin: true}
  - {accessKey: benchmark, secretKey: secret of the benchmark, topicPerms: [BenchSigned=PUB]}
"""
UNSIGNED = "the same sends without a signature, at a broker without access control"


def measure(options: Options) -> list[Figure]:
    """Measure all cases on both brokers in alternating rounds; both must have stored what they acknowledged."""
    plain = [frames.send(TOPIC, number) for number in range(FRAMES)]
    signed = [_signed(frame, KEYS) for frame in plain]
    with TemporaryDirectory(prefix="rucola-bench-") as folder:
        home = Path(folder) / "home"
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "plain_acl.yml").touch(mode=0o600)
        (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS, encoding="utf-8")
        conf = f"aclEnable=true\nrocketmqHome={home}\n"
        with (
            standalone(Path(folder) / "open") as without,
            standalone(Path(folder) / "guarded", conf=conf) as guarded,
        ):
            answer_to(without, plain[0])
            answer_to(guarded, signed[0])
            pairs = ((without, plain), (guarded, signed))
            one, count_1 = _in_turns(pairs, options.count(COUNT_1), options.rounds, in_flight=1)
            many, count_64 = _in_turns(pairs, options.count(COUNT_64), options.rounds, in_flight=64)
            client, count = _with_producer(without, guarded, options.count(COUNT_CLIENT), options.rounds)
            check_stored(without, TOPIC, 1 + count_1 + count_64 + count)
    return [
        _figure("signed_send_1_connection", one, [Aim("ratio", 1.15)]),
        _figure("signed_send_64_in_flight", many, [], hmac_us=_hmac_us(signed[0])),
        Figure(
            "signed_send_of_producer",
            median(float, client[1]),
            "µs CPU/message",
            floor=median(float, client[0]),
            floor_is=f"{UNSIGNED}; CPU time of client and broker together",
            aims=[Aim("ratio", 1.15)],
        ),
    ]


def _in_turns(
    pairs: tuple[tuple[Server, list[bytes]], ...], count: int, rounds: int, *, in_flight: int
) -> tuple[list[list[Run]], int]:
    """Return the runs of each broker, and the number of requests that each answered."""
    runs: list[list[Run]] = [[], []]
    for server, sends in pairs:
        drive(server, sends, count // 4, connections=1, in_flight=in_flight)
    for _ in range(rounds):
        for (server, sends), of in zip(pairs, runs, strict=True):
            of.append(drive(server, sends, count, connections=1, in_flight=in_flight))
    return runs, count // 4 + rounds * count


def _with_producer(without: Server, guarded: Server, count: int, rounds: int) -> tuple[list[list[float]], int]:
    """Return the CPU time of client and broker per message of each round, and the number of messages per broker."""
    costs: list[list[float]] = [[], []]

    async def send(server: Server, credentials: Credentials | None, messages: int) -> float:
        async with Producer("bench", server.namesrv, credentials=credentials) as producer:
            await producer.send(Message(TOPIC, b"x" * 1000))
            begin = time.process_time_ns() + server.cpu_ns()
            async for _ in producer.send_many((Message(TOPIC, b"x" * 1000, keys="k") for _ in range(messages)), 64):
                pass
            return (time.process_time_ns() + server.cpu_ns() - begin) / 1000 / messages

    cases = ((without, None), (guarded, KEYS))
    for server, credentials in cases:
        asyncio.run(send(server, credentials, count // 4))
    for _ in range(rounds):
        for of, (server, credentials) in zip(costs, cases, strict=True):
            of.append(asyncio.run(send(server, credentials, count)))
    return costs, 1 + count // 4 + rounds * (1 + count)


def _signed(frame: bytes, credentials: Credentials) -> bytes:
    (command,) = FrameDecoder().receive_data(frame)
    command.ext = dict(command.ext_fields)
    credentials.sign(command.ext, command.body)
    return command.encode()


def _hmac_us(frame: bytes) -> float:
    """Return the least CPU time of the two SHA-1 states and their copies that a signature takes, and nothing else."""
    (command,) = FrameDecoder().receive_data(frame)
    content = signed_text(command.signed_fields) + command.body
    inner, outer = hashlib.sha1(bytes(64)), hashlib.sha1(bytes(64))
    costs = []
    for _ in range(20):
        begin = time.process_time_ns()
        for _ in range(1000):
            first, second = inner.copy(), outer.copy()
            first.update(content)
            second.update(first.digest())
            second.digest()
        costs.append((time.process_time_ns() - begin) / 1e6)
    return min(costs)


def _figure(name: str, runs: list[list[Run]], aims: list[Aim], *, hmac_us: float | None = None) -> Figure:
    without, guarded = runs
    return Figure(
        name,
        median(lambda run: run.cpu_us, guarded),
        "µs CPU/message",
        floor=median(lambda run: run.cpu_us, without),
        floor_is=UNSIGNED,
        aims=aims,
        more={
            "messages/s": median(lambda run: run.rate, guarded),
            "least_µs": min(run.cpu_us for run in guarded),
            "least_µs_unsigned": min(run.cpu_us for run in without),
            **({} if hmac_us is None else {"hmac_µs": hmac_us}),
        },
    )
