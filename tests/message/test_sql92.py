"""SQL92 filters, against what Apache's filter module computes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import InvalidExpression
from rucola.message.sql92 import MAX_COMMENTS, MAX_DEPTH, MAX_LENGTH, compile

RECORDED = Path(__file__).parent.parent / "golden" / "sql92.jsonl"


CONVERTED = {
    "TRUE = b is not null",
    "a > -.5 = b AND -- y\n-5 > c Or /* x */ -.5<=- - 5",
    "_x$ not in ('x' , 'it''s','5') is null = '5' Or /* x */ c NOT BETWEEN b AND b is not null",
    "NOT b is not null is null or a not in ('x' , 'it''s','5')<>'it''s' is not null",
}
"""A boolean is compared with a text, which Apache converts only on the right-hand side; on the left it throws."""


def recorded() -> list[dict[str, object]]:
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def test_recorded_filters_match_as_in_apache() -> None:
    wrong = []
    for case in recorded():
        try:
            answer = compile(str(case["expression"])).matches(case["properties"])  # type: ignore[arg-type]
        except InvalidExpression:
            answer = None
        expected = None if case["answer"] == "refuse" else case["answer"] == "true" or case["expression"] in CONVERTED
        if answer is not expected:
            wrong.append((case, answer))
    assert wrong == []


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a between 2 and 7 and (TAGS = 'S0' or c is not null)", {"a": "2", "TAGS": "S0"}),
        ("a between 2 and 7 and (TAGS = 'S0' or c is not null)", {"a": "7", "c": "x"}),
        ("a > 5 -- a comment\nAND /* ** / * */ b = 'it''s'", {"a": "6", "b": "it's"}),
        ("NOT (a IN ('x', 'y'))", {"a": "z"}),
        ("a = b", {}),
        ("5 <> a", {}),
        ("a > 3.1E10", {"a": "31415000000.0"}),
        ("a > b", {"a": "NaN", "b": "Infinity"}),
        ("a < b", {"a": "-0.0", "b": "0.0"}),
        ("a = TRUE", {"a": "tRue"}),
        ("TRUE = a", {"a": "tRue"}),
        ("FALSE = a", {"a": "no"}),
        ("FALSE <> a AND NOT (TRUE = b)", {"a": "true", "b": "1"}),
        ("TRUE", {}),
        (" or ".join(["a = 1"] * 400) + " or a = 2", {"a": "2"}),
    ],
)
def test_matching_expressions_are_true(expression: str, properties: dict[str, str]) -> None:
    assert compile(expression).matches(properties)


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a", {"a": "true"}),
        ("a > 5", {}),
        ("a <> 5", {}),
        ("a > 5", {"a": "abc"}),
        ("a > 5 OR TRUE", {"a": "3000000000"}),
        ("a > b", {"a": "x", "b": "y"}),
        ("NULL", {}),
        ("A = 1", {"a": "1"}),
        ("a = 1", {"a": "1" * 6000}),
    ],
)
def test_other_expressions_are_not_true(expression: str, properties: dict[str, str]) -> None:
    assert not compile(expression).matches(properties)


@pytest.mark.parametrize(
    ("expression", "position", "why"),
    [
        ("", 0, "more is expected"),
        ("a = ", 4, "more is expected"),
        ("(a = 1", 6, "more is expected"),
        ("a = 'x", 4, "the text is not closed"),
        ("a # 3", 2, "'#' is not expected"),
        ("a LIKE 'x%'", 2, "'LIKE' is not expected"),
        ("a = 1 b", 6, "'b' is not expected"),
        ("a and between 2 and 10", 6, "'between' is not expected"),
        ("a in (5)", 6, "'5' is not expected"),
        ("5", 0, "a condition is expected"),
        ("b = 1 AND 'x'", 10, "a condition is expected"),
        ("a = NULL", 4, "nothing equals NULL; write IS NULL"),
        ("TRUE = 5", 0, "a boolean cannot be compared with that"),
        ("a > 'x'", 4, "only numbers and properties have an order"),
        ("NOT a > 5", 0, "only numbers and properties have an order"),
        ("-a IN ('x')", 0, "only a property can be IN a list"),
        ("a between 10 and 0", 10, "the range from 10 to 0 is empty"),
        ("a > 0.0", 4, "0.0 is not a double between 5e-324 and 1.7976931348623157e+308"),
        ("a > 9223372036854775808", 4, "9223372036854775808 is above 9223372036854775807, the largest long"),
        ("NOT " * (MAX_DEPTH + 1) + "TRUE", 0, f"it is nested more than {MAX_DEPTH} deep"),
        ("a = 1".ljust(MAX_LENGTH + 1), MAX_LENGTH, f"it is longer than {MAX_LENGTH} characters"),
        ("a > " + "-" * 2 * (MAX_COMMENTS + 1) + "1", 0, f"it has more than {MAX_COMMENTS} comments"),
    ],
)
def test_an_invalid_expression_is_refused_with_its_position(expression: str, position: int, why: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        compile(expression)
    error = caught.value
    assert (error.expression, error.position, error.why) == (expression, position, why)
    assert str(error).endswith(f"position {position}: {why}")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_deepest_expression_can_be_evaluated() -> None:
    assert compile("NOT " * MAX_DEPTH + "TRUE").matches({}) is (MAX_DEPTH % 2 == 0)


@pytest.mark.parametrize("expression", ["a > 5.5", "a > 5", "a > 5000000000", "a < b"])
@pytest.mark.parametrize("value", ["1" * 1_000_000 + "x", "1" * 1_000_000, "0x" + "f" * 1_000_000])
def test_a_property_of_a_million_digits_matches_nothing_at_once(expression: str, value: str) -> None:
    assert not compile(expression).matches({"a": value, "b": value})


@given(st.text(max_size=40), st.dictionaries(st.sampled_from("ab"), st.text()))
def test_any_text_is_an_expression_or_refused(expression: str, properties: dict[str, str]) -> None:
    try:
        compiled = compile(expression)
    except InvalidExpression as error:
        position = error.position
    else:
        assert compiled.matches(properties) in (True, False)
        return
    assert 0 <= position <= len(expression)


@given(st.text(), st.sampled_from([">", ">=", "<", "<=", "=", "<>"]), st.sampled_from(["5", "5L", "5.5", "b", "TRUE"]))
def test_any_property_can_be_compared(value: str, sign: str, other: str) -> None:
    if other != "TRUE" or sign in ("=", "<>"):
        assert compile(f"a {sign} {other}").matches({"a": value, "b": value}) in (True, False)


def test_only_this_module_imports_the_grammar_library() -> None:
    program = "import sys, rucola.broker.broker, rucola.client, rucola.message; print('lark' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
