"""Options as keyword arguments: editors complete them, and type checkers find misspelt names and wrong types.

mypy is run here. pyright 1.1.414, run by hand on PROGRAM, finds errors in the same lines and no others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

import rucola.client
from rucola import errors
from rucola.client import ConsumeKeywords, ConsumeOptions, ProducerKeywords, ProducerOptions
from support.installation import REPOSITORY

PROGRAM = """
import rucola
from rucola.client import Producer, PullConsumer, PushConsumer, TransactionProducer, sync
from rucola.client import ConnectionOptions, Credentials, LocalTransactionState, MessageExt

keys, cluster = Credentials("a", "b"), ConnectionOptions("host:9876")

def check(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.UNKNOW

PushConsumer("g", max_reconsume_times=3, orderly=True)
Producer("g", "host:9876", retry_times=1)
rucola.Producer("g", retry_times=1)
rucola.Producer("g", retries=1)  # wrong
TransactionProducer("g", check=check, topics=["T"], retry_times=1)
sync.PushConsumer("g", concurrency=1)
sync.Producer("g", latency_fault_tolerance=True)
sync.TransactionProducer("g", check=check, topics=["T"], retry_times=1)

Producer("g", cluster, retry_times=1)
sync.PushConsumer("g", cluster, concurrency=1)
sync.PushConsumer("g", credentials=keys, concurrency=1)
sync.PullConsumer("g", credentials=keys)

PushConsumer("g", max_reconsume_time=3)  # wrong
PushConsumer("g", orderly="yes")  # wrong
Producer("g", retries=1)  # wrong
TransactionProducer("g", check=check, topic="T")  # wrong
PullConsumer("g", orderly=True)  # wrong
sync.Producer("g", cluster, retry_times=1)
sync.PushConsumer("g", cluster, concurrency=1)
sync.PushConsumer("g", credentials=keys, concurrency=1)
sync.PullConsumer("g", credentials=keys)

PushConsumer("g", max_reconsume_time=3)  # wrong
sync.Producer("g", retry_times="1")  # wrong
sync.TransactionProducer("g", check=check, topic="T")  # wrong
sync.PullConsumer("g", orderly=True)  # wrong
sync.PushConsumer("g", tls="ca.pem")  # wrong
TransactionProducer("g", check=check, credentials="a:b")  # wrong

class Order: ...
class Meal: ...

class Text:
    def encode(self, value: str) -> bytes: return value.encode()
    def decode(self, body: bytes) -> str: return body.decode()

def on_order(message: MessageExt[Order]) -> None:
    order: Order = message.value
    meal: Meal = message.value  # wrong

async def on_meal(message: MessageExt[Meal]) -> None: ...
def on_any(message: MessageExt) -> None: ...
def on_orders(messages: list[MessageExt[Order]]) -> None: ...

Producer("g", value=Order).message("T", Order())
Producer("g", value=Order).message("T", Meal())  # wrong
Producer("g", value=Text()).message("T", "text")
Producer("g", value=Text()).message("T", b"text")  # wrong
Producer("g", value=dict[str, int]).message("T", {"a": 1})
Producer("g", value=dict[str, int]).message("T", {"a": "b"})  # wrong
TransactionProducer("g", check=check, value=Order).message("T", Meal())  # wrong
sync.Producer("g", value=Order).message("T", Meal())  # wrong
sync.TransactionProducer("g", check=check, value=Order).message("T", Meal())  # wrong

orders = PushConsumer("g", value=Order)
orders.listen(on_order)
orders.listen(on_any)
orders.listen(on_meal)  # wrong
orders.listen_to_batches(on_orders, 3)
sync.PushConsumer("g", value=Order).listen(on_order)
sync.PushConsumer("g", value=Order).listen(on_meal)  # wrong
PushConsumer("g").listen(on_order)

async def iterate() -> None:
    async for message in orders:
        order: Order = message.value
        meal: Meal = message.value  # wrong
    for received in sync.PushConsumer("g", value=Meal):
        on_any(received)
        on_order(received)  # wrong
"""


@pytest.mark.slow
def test_mypy_finds_wrong_options_and_no_others(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    config = ["--config-file", str(REPOSITORY / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *config, "--no-error-summary", str(program)],
        env={"MYPYPATH": str(REPOSITORY / "src")}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
    assert 'did you mean "max_reconsume_times"' in done.stdout


@pytest.mark.parametrize(
    ("keywords", "options"), [(ConsumeKeywords, ConsumeOptions), (ProducerKeywords, ProducerOptions)]
)
def test_the_keywords_are_the_fields_of_the_options(keywords: type[object], options: type[msgspec.Struct]) -> None:
    assert get_type_hints(keywords) == get_type_hints(options)
    assert list(keywords.__annotations__) == list(options.__struct_fields__)


def test_options_and_errors_of_clients_are_in_the_package() -> None:
    of_stores = {"RemoteProtocolError", "StoreError", "StoreCorrupt", "StoreLocked", "DirectoryNotShared"}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.MQError)]
    assert {kind.__name__ for kind in kinds} - of_stores <= set(rucola.client.__all__)
    assert {"ConsumeOptions", "ProducerOptions"} <= set(rucola.client.__all__)
