"""`rucola router`: a router in a process that starts again after a change, and its AsyncAPI document."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rucola.testing.rocketmq import RocketMQ
from support.waiting import wait_until

KITCHEN = '''
from dataclasses import dataclass
from rucola.client import ConsumeFromWhere, Router

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
router = Router("kitchen")
bills = router.publisher("Bills", value=str, tags="paper")


@dataclass
class Order:
    dish: str
    guests: int = 1


@dataclass
class Meal:
    order: Order


@router.publisher("Meals")
@router.subscriber("Orders", group="cooks", filter="food", consume_from=FIRST)
async def cook(order: Order) -> Meal:
    """Cook what was ordered.

    In this kitchen.
    """
    print("cooked", order.dish, flush=True)
    return Meal(order)
'''


def rucola(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rucola", "router", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory)


def test_the_document_has_topics_operations_and_schemas(tmp_path: Path) -> None:
    (tmp_path / "kitchen.py").write_text(KITCHEN)
    done = rucola(tmp_path, "asyncapi", "kitchen:router")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["asyncapi"], found["info"]["title"]) == ("3.0.0", "kitchen")
    assert found["channels"].keys() == {"Orders", "Meals", "Bills"}
    received = found["operations"]["receive_cooks"]
    assert (received["action"], received["summary"]) == ("receive", "Cook what was ordered.")
    assert received["x-rocketmq"] == {"group": "cooks", "filter": "food"}
    assert received["messages"] == [{"$ref": "#/channels/Orders/messages/Order"}]
    assert found["channels"]["Orders"]["messages"]["Order"]["payload"] == {"$ref": "#/components/schemas/Order"}
    assert found["components"]["schemas"]["Order"]["required"] == ["dish"]
    assert found["components"]["schemas"]["Meal"]["properties"]["order"] == {"$ref": "#/components/schemas/Order"}
    assert found["operations"]["send_Bills"]["x-rocketmq"] == {"tags": "paper"}
    assert found["channels"]["Bills"]["messages"]["text"]["contentType"] == "text/plain"


@pytest.mark.parametrize("target", ["kitchen", "nowhere:router", "kitchen:Order"])
def test_what_is_no_router_is_wrong_usage(tmp_path: Path, target: str) -> None:
    (tmp_path / "kitchen.py").write_text(KITCHEN)
    done = rucola(tmp_path, "asyncapi", target)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_a_change_starts_the_program_again_and_an_error_in_it_waits_for_the_next(
    tmp_path: Path, rocketmq: RocketMQ
) -> None:
    log, kitchen = tmp_path / "log", tmp_path / "kitchen.py"
    kitchen.write_text(KITCHEN)
    command = [sys.executable, "-m", "rucola", "router", "run", "kitchen:router", "--reload", "--logFormat", "json"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=tmp_path, env=os.environ | {"ROCKETMQ_NAMESRV": rocketmq.namesrv}
        )
    try:
        rocketmq.send("Orders", b'{"dish": "pizza"}', tags="food")
        wait_until(lambda: "cooked pizza" in log.read_text())
        kitchen.write_text("import nothing_of_this_name\n")
        wait_until(lambda: "nothing_of_this_name" in log.read_text())
        kitchen.write_text(KITCHEN.replace('"cooked"', '"fried"'))
        rocketmq.send("Orders", b'{"dish": "pasta"}', tags="food")
        wait_until(lambda: "fried pasta" in log.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    starts = [line for line in log.read_text().splitlines() if "router kitchen consumes" in line]
    assert len(starts) == 2
    assert all(json.loads(line)["level"] == "INFO" for line in starts), "each program has the options of the first"
