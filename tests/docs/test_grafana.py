"""The dashboards of deploy/grafana: they can be imported, and ask for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from support.installation import REPOSITORY

DASHBOARDS = sorted((REPOSITORY / "deploy" / "grafana").glob("*.json"))
PAGE = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
COLUMNS = 24
BUILT_IN = {"__rate_interval", "__interval", "__range"}
UNITS = {"short", "none", "bytes", "Bps", "s", "ms", "percentunit", "percent", "cps", "ops", "bool", "dateTimeAsIso"}
"""Ids of units that Grafana knows; there are more."""
RUNTIME = "cluster, brokerIP, brokerHost, des, boottime and broker_version"


def documented() -> dict[str, set[str]]:
    """The labels of each metric; the tests of the metrics compare the page with what servers export."""
    found: dict[str, set[str]] = {}
    for names, second in re.findall(r"^\| (`[a-z_` ,]+`) \|([^|]*)\|", PAGE, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            found[name] = set(re.findall(r"\w+", RUNTIME if name.startswith("rocketmq_brokeruntime_") else second))
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    queries = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return queries + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_metrics_that_exist(path: Path) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    metrics = documented()
    for expression in expressions(dashboard):
        assert expression.count("(") == expression.count(")"), expression
        used = re.findall(r"\b((?:rocketmq|rucola)_\w+)(?:\{([^}]*)\})?", expression)
        assert used, expression
        for name, matchers in used:
            assert name in metrics, expression
            assert set(re.findall(r"(\w+)=~", matchers)) <= metrics[name], expression
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            assert set(labels.split(", ")) <= metrics[used[0][0]], expression
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            name = re.findall(r"\b(?:rocketmq|rucola)_\w+", target["expr"])[0]
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= metrics[name] | {"instance"}, target


def test_dashboards_can_be_imported_together() -> None:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS]
    assert len({one["uid"] for one in found}) == len(found) == 3
    for one in found:
        assert one["schemaVersion"] >= 36
        assert len({panel["id"] for panel in one["panels"]}) == len(one["panels"])
        sources = [panel["datasource"] for panel in one["panels"]]
        sources += [target["datasource"] for panel in one["panels"] for target in panel["targets"]]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources), (
            "chosen at the import"
        )
        for panel in one["panels"]:
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= COLUMNS
        for panel, other in combinations([panel["gridPos"] for panel in one["panels"]], 2):
            is_apart = [
                a[place] + a[size] <= b[place]
                for place, size in (("x", "w"), ("y", "h"))
                for a, b in ((panel, other), (other, panel))
            ]
            assert any(is_apart), "no panel lies on another"
        variables = {variable["name"]: variable for variable in one["templating"]["list"]}
        assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
        used = {name for expression in expressions(one) for name in re.findall(r"\$\{?(\w+)", expression)}
        assert used <= variables.keys() | BUILT_IN
        units = {panel["fieldConfig"]["defaults"]["unit"] for panel in one["panels"]}
        assert units <= UNITS, "others are shown as a suffix"
