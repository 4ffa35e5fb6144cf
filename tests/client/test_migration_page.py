"""docs/migration.md: its program runs, and every call and option in the columns for Rucola exists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import rucola.client
from rucola.client import (
    ConsumeKeywords,
    MessageExt,
    Producer,
    ProducerKeywords,
    Publisher,
    PullConsumer,
    PushConsumer,
    Router,
)
from rucola.client import TransactionProducer as Transactions
from rucola.client import sync as blocking
from support.documents import Document
from support.reader import Reader

PAGE = Document.read("docs/migration.md")
OURS = [row.split("|")[2] for row in re.findall(r"^\|.*\|$", PAGE.text, re.MULTILINE)]
"""The right column of all tables."""
CLASSES = {
    "producer": (Producer, Transactions, blocking.Producer, blocking.TransactionProducer),
    "consumer": (PushConsumer, PullConsumer, blocking.PushConsumer, blocking.PullConsumer),
    "message": (MessageExt, rucola.client.Message),
    "router": (Router,),
    "publisher": (Publisher,),
}
OF_ROUTERS = {*inspect.signature(Router.subscriber).parameters, *inspect.signature(Router.publisher).parameters}
OPTIONS = {*ConsumeKeywords.__annotations__, *ProducerKeywords.__annotations__, "namesrv", "check", *OF_ROUTERS}
OF_MESSAGES = {"body", "keys", "properties", "tags"}
OF_CALLS = {"delay_level", "credentials"}


@pytest.mark.slow
def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.type(
            "rucola standalone --store data",
            "rucola ready namesrv=127.0.0.1:9876 broker=127.0.0.1:10911 grpc=127.0.0.1:8081\n",
        )
        reader.follow(PAGE)
        reader.type("python migrated.py", "order-1 b'9 euros'\n")
        reader.type("python migrated.py", "order-1 b'9 euros'\n")


def test_every_member_exists() -> None:
    calls = {
        match
        for column in OURS
        for match in re.findall(r"\b(producer|consumer|message|router|publisher)\.(\w+)", column)
    }
    assert len(calls) > 20
    missing = [f"{name}.{member}" for name, member in calls if not any(hasattr(c, member) for c in CLASSES[name])]
    assert missing == []


def test_every_class_and_option_exists() -> None:
    code = [text for column in OURS for text in re.findall(r"`([^`]*)`", column)]
    classes = {name for text in code for name in re.findall(r"\b([A-Z][a-z]\w+)\(", text)}
    assert classes <= set(rucola.client.__all__)
    assert len(classes) >= 6
    options = {name for text in code for name in re.findall(r"\b([a-z_]+)=", text)}
    assert options - OPTIONS - OF_MESSAGES - OF_CALLS == set()
