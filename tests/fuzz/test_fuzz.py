"""A short run of the fuzzer over every target: its corpus, with every input that once failed, and some mutations.

`make fuzz` runs it for hours (`tests/support/fuzz/run.py`).
"""

from __future__ import annotations

import random
import resource
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rucola.errors import InvalidMessage
from support.fuzz.access import access_targets, guarded_targets
from support.fuzz.directories import lake_target, store_target
from support.fuzz.loop import GROWTH, Run, Target, fuzz, read_corpus
from support.fuzz.ports import client_target, port_targets
from support.fuzz.servers import broker_target, namesrv_target
from support.fuzz.targets import parser_targets

CORPUS = Path(__file__).parent / "corpus"
INPUTS = {"store": 40, "lake": 150, "broker": 600, "namesrv": 600, "guarded": 300, "signed": 300, "client": 150}
INPUTS |= {"tls-port": 100, "ha-port": 100, "metrics-port": 100}
"""Inputs of targets that are slower than a parser, beside their seeds."""
INPUTS_OF_PARSER = 600


@pytest.mark.slow
def test_no_parser_fails_stalls_or_grows(golden: Path, tmp_path: Path) -> None:
    for target in [*parser_targets(golden), *access_targets(tmp_path)]:
        run = fuzz(target, read_corpus(CORPUS, target.name), random.Random(target.name), INPUTS_OF_PARSER)
        assert run.findings == [], "\n".join(map(str, run.findings))
        assert run.count >= INPUTS_OF_PARSER


@pytest.mark.slow
@pytest.mark.parametrize("name", ["store", "lake", "broker", "namesrv", "guarded", "ports", "client"])
def test_no_store_lake_or_server_fails_stalls_or_grows(golden: Path, tmp_path: Path, name: str) -> None:
    with ExitStack() as stack:
        match name:
            case "store":
                targets = [store_target(tmp_path)]
            case "lake":
                targets = [lake_target(tmp_path)]
            case "broker":
                targets = [stack.enter_context(broker_target(golden, tmp_path))]
            case "guarded":
                targets = stack.enter_context(guarded_targets(golden, tmp_path))
            case "ports":
                targets = stack.enter_context(port_targets(golden, tmp_path))
            case "client":
                targets = [stack.enter_context(client_target(golden))]
            case _:
                targets = [stack.enter_context(namesrv_target(golden))]
        for target in targets:
            corpus, chance = read_corpus(CORPUS, target.name), random.Random(target.name)
            run = fuzz(target, corpus, chance, len(target.seeds) + INPUTS[target.name])
            assert run.findings == [], "\n".join(map(str, run.findings))


def test_every_input_of_the_corpus_belongs_to_a_target(golden: Path, tmp_path: Path) -> None:
    parsers = [*parser_targets(golden), *access_targets(tmp_path)]
    assert {path.name for path in CORPUS.iterdir()} <= {target.name for target in parsers} | INPUTS.keys()


@pytest.mark.parametrize(
    "data", [b"a\\\n" * 300_000, b"\\a" * 400_000, b"a" * 800_000], ids=["continued", "escaped", "plain"]
)
def test_long_lines_of_settings_neither_stall_nor_grow(golden: Path, data: bytes) -> None:
    """They once took quadratic time, and 200 bytes for each of theirs."""
    (target,) = [target for target in parser_targets(golden) if target.name == "settings"]
    run = Run(replace(target, stall_s=1.0))
    run.try_input(data)
    assert run.findings == []


@pytest.mark.parametrize("bad", ["fails", "stalls", "grows"])
def test_the_loop_finds_what_it_looks_for(bad: str) -> None:
    """Mutations of `{"a":1}` reach a condition on its bytes, and each kind of bad outcome is noticed."""

    def parse(data: bytes) -> None:
        if data.count(b"{") < 2:
            raise InvalidMessage("too few braces")
        if bad == "fails":
            raise ValueError(f"a failure in {len(data)} bytes")
        if bad == "grows" and not grown:
            grown.append(len(bytearray(b"x") * (below_peak() + 2 * GROWTH)))
        if bad == "stalls":
            sum(range(500_000))

    grown: list[int] = []
    target = Target("example", [b'{"a":1}'], parse, stall_s=0.002)
    run = fuzz(target, [], random.Random(1), 200)
    found = {"fails": "ValueError", "stalls": "CPU seconds", "grows": "memory grew"}[bad]
    assert [finding.why for finding in run.findings if found in finding.why]


def below_peak() -> int:
    """The bytes that this process can take again without exceeding its peak."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - pages * resource.getpagesize()
