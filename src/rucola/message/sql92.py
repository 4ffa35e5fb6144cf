"""SQL92 filters: expressions over a message's properties, such as `price > 5 AND region IN ('eu', 'us')`.

    selector    or             a OR b OR ...
    or          and            a AND b AND ...
    and         equality       a = b, a <> b, a IS NULL, a IS NOT NULL
    equality    comparison     a > b, >=, <, <=, a BETWEEN b AND c, a IN ('x', 'y'), each but the first four with NOT
    comparison  unary          +a, -a, NOT a
    unary       TRUE FALSE NULL, 'text' ('' for a quote), 5, 5L, 5.5, 5E3, a property's name, or a selector in brackets

Keywords are case-insensitive, property names are not. Comments are `-- ...` up to the end of the line and `/* ... */`.
NOT binds tightest: `NOT a = 1` is `(NOT a) = 1`, which matches no message. There is no arithmetic, LIKE or CONTAINS.

A property is a string, or NULL if missing. Logic has three values; a message matches if the expression is TRUE:

    strings with > >= < <=      as doubles
    a string with = <> a string as strings
    a string with a number      as a number of that type: an int (up to 2^31), a long, a double
    a string with a boolean     TRUE if it is `true` in any case
    NULL                        `a = 5` and `a > 5` are NULL, `5 = a` is FALSE, `a = b` is TRUE if both are missing
    a string that does not parse as that type                          the whole expression matches nothing

`compile` rejects expressions that cannot have a value: text or booleans with an ordering operator, `= NULL`, an empty
range, a malformed number, and 0.0, which is below the least double that Apache accepts. Import this module only for a
filter: it imports the grammar library.

Counterpart of `SelectorParser`, `ComparisonExpression`, `UnaryExpression` and `ConstantExpression` of Apache RocketMQ
4.9.8. Deliberate differences: text after an expression (Apache ignores it) and expressions above the limits are
rejected; `TRUE = a` compares as `a = TRUE` (Apache matches nothing).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from struct import Struct
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from rucola.errors import InvalidExpression

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction | conjunction ("OR"i conjunction)+ -> any_of
?conjunction: equality | equality ("AND"i equality)+ -> all_of
?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality "IS"i "NULL"i -> is_null
    | equality "IS"i "NOT"i "NULL"i -> is_not_null
?comparison: unary
    | comparison ">" unary -> greater
    | comparison ">=" unary -> greater_or_equal
    | comparison "<" unary -> less
    | comparison "<=" unary -> less_or_equal
    | comparison "BETWEEN"i unary "AND"i unary -> between
    | comparison "NOT"i "BETWEEN"i unary "AND"i unary -> not_between
    | comparison "IN"i "(" STRING ("," STRING)* ")" -> is_in
    | comparison "NOT"i "IN"i "(" STRING ("," STRING)* ")" -> is_not_in
?unary: primary
    | "+" unary -> plus
    | MINUS unary -> negated
    | NOT unary -> inverted
?primary: STRING -> string
    | DECIMAL -> decimal
    | FLOAT -> floating
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | NAME -> property
    | "(" disjunction ")"

MINUS: "-"
NOT: "NOT"i
TRUE: "TRUE"i
FALSE: "FALSE"i
NULL: "NULL"i
NAME: /[a-z_$][a-z0-9_$]*/i
FLOAT.2: /([0-9]+\.[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)/i
DECIMAL: /0|[1-9][0-9]*l?/i
STRING: /'(''|[^'])*'/
LINE_COMMENT.3: /--[^\n\r]*(\r\n|\n|\r)/
BLOCK_COMMENT.3: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
%ignore /[ \t\n\r\f]+/
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""

MAX_DEPTH = 200
"""Limit on the nesting of conditions; each level is one call per message."""

MAX_LENGTH = 4096
"""Limit on an expression in characters; this length compiles in up to 20 ms."""
MAX_COMMENTS = 100
"""Limit on the number of `--`: for each on the last line the lexer searches the rest for a line break."""
MAX_NUMBER_LENGTH = 1024
"""Limit on a property that is compared with a number; a longer one is not a number."""

_INT_END = 1 << 31
_LONG_END = 1 << 63
_MIN_DOUBLE, _MAX_DOUBLE = 5e-324, 1.7976931348623157e308

_Evaluate: TypeAlias = Callable[[Mapping[str, str]], Any]
"""Evaluate a term for a message's properties. Raises _NoValueError if a property cannot be converted."""
_Convert: TypeAlias = Callable[[Any], Any]


class Expression:
    """A compiled filter, safe to share between threads; `text` is its source."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: _Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def matches(self, properties: Mapping[str, str]) -> bool:
        try:
            return self._evaluate(properties) is True
        except _NoValueError:
            return False


def compile(expression: str) -> Expression:
    """Compile a filter. Raises InvalidExpression, which names the error and its position."""
    if len(expression) > MAX_LENGTH:
        raise InvalidExpression(expression, MAX_LENGTH, f"it is longer than {MAX_LENGTH} characters")
    if expression.count("--") > MAX_COMMENTS:
        raise InvalidExpression(expression, 0, f"it has more than {MAX_COMMENTS} comments")
    try:
        selector: Any = _parser().parse(expression)
        return Expression(expression, _condition(selector).evaluate)
    except UnexpectedInput as error:
        raise InvalidExpression(expression, *_unexpected(expression, error)) from None
    except _MeaninglessError as error:
        raise InvalidExpression(expression, error.position, error.why) from None


@cache
def _parser() -> Lark:
    """Return the parser, built once in about 20 ms. ASCII matching keeps other letters from folding into keywords."""
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Compiler(), g_regex_flags=re.ASCII)


def _unexpected(expression: str, error: UnexpectedInput) -> tuple[int, str]:
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            return len(expression), "more is expected"
        return _start(error.token), f"{str(error.token)!r} is not expected"
    position = error.pos_in_stream or 0
    character = expression[position]
    return position, "the text is not closed" if character == "'" else f"{character!r} is not expected"


class _Type(Enum):
    """Types of values. Numbers are always constants."""

    TEXT = auto()
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NOTHING = auto()


class _Role(Enum):
    PROPERTY = auto()
    CONSTANT = auto()
    NEGATED = auto()
    CONDITION = auto()


_NUMBERS = (_Type.INT, _Type.LONG, _Type.DOUBLE)


@dataclass(frozen=True, slots=True)
class _Term:
    """A compiled part of an expression; `constant` is a value that does not depend on the message."""

    position: int
    role: _Role
    type: _Type
    evaluate: _Evaluate
    constant: str | int | float | None = None
    depth: int = 0


class _NoValueError(Exception):
    """Raised if the expression has no value for a message, which then does not match."""


class _MeaninglessError(Exception):
    """Raised for a part of an expression that cannot have a value for any message."""

    def __init__(self, position: int, why: str) -> None:
        self.position = position
        self.why = why


@v_args(inline=True)
class _Compiler(Transformer[Token, _Term]):
    """Transformer of reductions into terms; methods have the names of grammar rules."""

    def string(self, token: Token) -> _Term:
        return _constant(_start(token), _Role.CONSTANT, _Type.TEXT, _text(token))

    def decimal(self, token: Token) -> _Term:
        value = int(token.rstrip("lL")[:20])
        if value >= _LONG_END:
            raise _MeaninglessError(_start(token), f"{token} is above {_LONG_END - 1}, the largest long")
        return _constant(_start(token), _Role.CONSTANT, _Type.INT if value < _INT_END else _Type.LONG, value)

    def floating(self, token: Token) -> _Term:
        value = float(token)
        if not _MIN_DOUBLE <= value <= _MAX_DOUBLE:
            raise _MeaninglessError(_start(token), f"{token} is not a double between {_MIN_DOUBLE} and {_MAX_DOUBLE}")
        return _constant(_start(token), _Role.CONSTANT, _Type.DOUBLE, value)

    def true(self, token: Token) -> _Term:
        return _constant(_start(token), _Role.CONSTANT, _Type.BOOLEAN, True)

    def false(self, token: Token) -> _Term:
        return _constant(_start(token), _Role.CONSTANT, _Type.BOOLEAN, False)

    def null(self, token: Token) -> _Term:
        return _constant(_start(token), _Role.CONSTANT, _Type.NOTHING, None)

    def property(self, token: Token) -> _Term:
        return _Term(_start(token), _Role.PROPERTY, _Type.TEXT, operator.methodcaller("get", str(token)))

    def plus(self, term: _Term) -> _Term:
        return term

    def negated(self, minus: Token, term: _Term) -> _Term:
        if term.type in _NUMBERS:
            assert isinstance(term.constant, (int, float))
            return _constant(_start(minus), _Role.NEGATED, term.type, -term.constant)
        evaluate = term.evaluate

        def nothing(properties: Mapping[str, str]) -> None:
            evaluate(properties)

        return _nest(_start(minus), _Role.NEGATED, _Type.NOTHING, nothing, term)

    def inverted(self, word: Token, term: _Term) -> _Term:
        return _not(_condition(term), _start(word))

    def any_of(self, *terms: _Term) -> _Term:
        return _chain(terms, decisive=True)

    def all_of(self, *terms: _Term) -> _Term:
        return _chain(terms, decisive=False)

    def equal(self, left: _Term, right: _Term) -> _Term:
        return _equal(left, right)

    def not_equal(self, left: _Term, right: _Term) -> _Term:
        return _not(_equal(left, right), left.position)

    def is_null(self, term: _Term) -> _Term:
        return _is_null(term)

    def is_not_null(self, term: _Term) -> _Term:
        return _not(_is_null(term), term.position)

    def greater(self, left: _Term, right: _Term) -> _Term:
        return _ordered(operator.gt, left, right)

    def greater_or_equal(self, left: _Term, right: _Term) -> _Term:
        return _ordered(operator.ge, left, right)

    def less(self, left: _Term, right: _Term) -> _Term:
        return _ordered(operator.lt, left, right)

    def less_or_equal(self, left: _Term, right: _Term) -> _Term:
        return _ordered(operator.le, left, right)

    def between(self, term: _Term, low: _Term, high: _Term) -> _Term:
        at_least, at_most = _ordered(operator.ge, term, low), _ordered(operator.le, term, high)
        if low.role is high.role is _Role.CONSTANT:
            convert_low, convert_high = _converters(low.type, high.type)
            if convert_low(low.constant) > convert_high(high.constant):
                raise _MeaninglessError(low.position, f"the range from {low.constant} to {high.constant} is empty")
        return _chain((at_least, at_most), decisive=False)

    def not_between(self, term: _Term, low: _Term, high: _Term) -> _Term:
        return _chain((_ordered(operator.lt, term, low), _ordered(operator.gt, term, high)), decisive=True)

    def is_in(self, term: _Term, *tokens: Token) -> _Term:
        if term.role is not _Role.PROPERTY:
            raise _MeaninglessError(term.position, "only a property can be IN a list")
        value_of, texts = term.evaluate, frozenset(map(_text, tokens))

        def is_in(properties: Mapping[str, str]) -> bool | None:
            value = value_of(properties)
            return None if value is None else value in texts

        return _nest(term.position, _Role.CONDITION, _Type.BOOLEAN, is_in, term)

    def is_not_in(self, term: _Term, *tokens: Token) -> _Term:
        return _not(self.is_in(term, *tokens), term.position)


def _start(token: Token) -> int:
    return token.start_pos or 0


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _constant(position: int, role: _Role, type: _Type, value: str | int | float | None) -> _Term:
    return _Term(position, role, type, lambda properties: value, value)


def _nest(position: int, role: _Role, type: _Type, evaluate: _Evaluate, *parts: _Term) -> _Term:
    depth = 1 + max([part.depth for part in parts])
    if depth > MAX_DEPTH:
        raise _MeaninglessError(position, f"it is nested more than {MAX_DEPTH} deep")
    return _Term(position, role, type, evaluate, depth=depth)


# -- logic -------------------------------------------------------------------------------------------------------------


def _condition(term: _Term) -> _Term:
    """Return `term` as a condition. A property is a string, so never TRUE."""
    if term.role is _Role.CONDITION or (term.role is _Role.CONSTANT and term.type in (_Type.BOOLEAN, _Type.NOTHING)):
        return term
    if term.role is not _Role.PROPERTY:
        raise _MeaninglessError(term.position, "a condition is expected")
    value_of = term.evaluate

    def never_true(properties: Mapping[str, str]) -> bool | None:
        return None if value_of(properties) is None else False

    return _nest(term.position, _Role.CONDITION, _Type.BOOLEAN, never_true, term)


def _not(condition: _Term, position: int) -> _Term:
    evaluate = condition.evaluate

    def inverted(properties: Mapping[str, str]) -> bool | None:
        value = evaluate(properties)
        return None if value is None else not value

    return _nest(position, _Role.CONDITION, _Type.BOOLEAN, inverted, condition)


def _chain(terms: tuple[_Term, ...], *, decisive: bool) -> _Term:
    """Join conditions by OR (`decisive` True) or AND (False); the first decisive value ends the evaluation."""
    conditions = tuple([_condition(term) for term in terms])
    evaluates = tuple([condition.evaluate for condition in conditions])

    def chain(properties: Mapping[str, str]) -> bool | None:
        answer: bool | None = not decisive
        for evaluate in evaluates:
            value: bool | None = evaluate(properties)
            if value is decisive:
                return value
            if value is None:
                answer = None
        return answer

    return _nest(terms[0].position, _Role.CONDITION, _Type.BOOLEAN, chain, *conditions)


# -- comparing ---------------------------------------------------------------------------------------------------------


def _is_null(term: _Term) -> _Term:
    value_of = term.evaluate
    return _nest(term.position, _Role.CONDITION, _Type.BOOLEAN, lambda properties: value_of(properties) is None, term)


def _equal(left: _Term, right: _Term) -> _Term:
    for term in (left, right):
        if term.role is _Role.CONSTANT and term.type is _Type.NOTHING:
            raise _MeaninglessError(term.position, "nothing equals NULL; write IS NULL")
    if left.role is right.role is _Role.CONSTANT and left.type is _Type.BOOLEAN is not right.type:
        raise _MeaninglessError(left.position, "a boolean cannot be compared with that")
    left_of, right_of = left.evaluate, right.evaluate
    convert_left, convert_right = _converters(left.type, right.type)

    def equal(properties: Mapping[str, str]) -> bool | None:
        left_value, right_value = left_of(properties), right_of(properties)
        if right_value is None:
            return left_value is None
        if left_value is None:
            return None
        return bool(convert_left(left_value) == convert_right(right_value))

    return _nest(left.position, _Role.CONDITION, _Type.BOOLEAN, equal, left, right)


def _ordered(holds: Callable[[Any, Any], bool], left: _Term, right: _Term) -> _Term:
    for term in (left, right):
        if term.role is _Role.CONDITION or (term.role is _Role.CONSTANT and term.type not in _NUMBERS):
            raise _MeaninglessError(term.position, "only numbers and properties have an order")
    left_of, right_of = left.evaluate, right.evaluate
    both_text = left.type is right.type is _Type.TEXT
    convert_left, convert_right = (_double, _double) if both_text else _converters(left.type, right.type)

    def ordered(properties: Mapping[str, str]) -> bool | None:
        left_value = left_of(properties)
        if left_value is None:
            return None
        right_value = right_of(properties)
        if right_value is None:
            return None
        return holds(convert_left(left_value), convert_right(right_value))

    return _nest(left.position, _Role.CONDITION, _Type.BOOLEAN, ordered, left, right)


def _converters(left: _Type, right: _Type) -> tuple[_Convert, _Convert]:
    if left is right:
        return _SAME[left], _SAME[right]
    if _Type.NOTHING in (left, right):
        return _as_it_is, _as_it_is
    if left is _Type.TEXT:
        return _READ[right], _SAME[right]
    if right is _Type.TEXT:
        return _SAME[left], _READ[left]
    if _Type.BOOLEAN in (left, right):
        return _never, _as_it_is
    return (_rank, _rank) if _Type.DOUBLE in (left, right) else (_as_it_is, _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _never(value: object) -> object:
    """Return an object that equals no other."""
    return object()


# No text matches in two ways, so a long non-number is refused in linear time.
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"[+-]?(NaN|Infinity|([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX]([0-9a-fA-F]+(\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)
_SPACE = "".join(map(chr, range(33)))
_DOUBLE_BITS, _LONG_BITS = Struct(">d"), Struct(">q")


def _integer(text: str, end: int) -> int:
    """Parse an integer below `end` as Java does: digits of any script, no spaces."""
    if len(text) > MAX_NUMBER_LENGTH or not _INTEGER.fullmatch(text):
        raise _NoValueError
    value = int(text)
    if not -end <= value < end:
        raise _NoValueError
    return value


def _int(text: str) -> int:
    return _integer(text, _INT_END)


def _long(text: str) -> int:
    return _integer(text, _LONG_END)


def _double(text: str) -> int:
    text = text.strip(_SPACE)
    if len(text) > MAX_NUMBER_LENGTH or not _DOUBLE.fullmatch(text):
        raise _NoValueError
    digits = text.rstrip("fFdD")
    if "x" not in text and "X" not in text:
        return _rank(float(digits))
    try:
        return _rank(float.fromhex(digits))
    except OverflowError:
        return _rank(float("-inf" if text[0] == "-" else "inf"))


def _boolean(text: str) -> bool:
    return text.lower() == "true"


def _rank(number: float) -> int:
    """Map a double to an integer in Java's order: -0.0 is below 0.0; NaN equals itself and is above all others."""
    bits: int = _LONG_BITS.unpack(_DOUBLE_BITS.pack(number))[0] if number == number else _LONG_END - 1
    return bits if bits >= 0 else ~bits - _LONG_END


_READ: dict[_Type, _Convert] = {_Type.INT: _int, _Type.LONG: _long, _Type.DOUBLE: _double, _Type.BOOLEAN: _boolean}
"""Conversion of a string that is compared with a value of the type."""
_SAME: dict[_Type, _Convert] = dict.fromkeys(_Type, _as_it_is) | {_Type.DOUBLE: _rank}
"""Conversion of a value of the type that is compared with another of that type."""
