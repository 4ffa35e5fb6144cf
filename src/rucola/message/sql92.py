"""SQL92 filters: expressions over a message's properties, such as `price > 5 AND region IN ('eu', 'us')`.

    selector    or             a OR b OR ...
    or          and            a AND b AND ...
    and         equality       a = b, a <> b, a IS NULL, a IS NOT NULL
    equality    comparison     a > b, >=, <, <=, a BETWEEN b AND c, a IN ('x', 'y'), each but the first four with NOT
    comparison  unary          +a, -a, NOT a
    unary       TRUE FALSE NULL, 'text' ('' for a quote), 5, 5L, 5.5, 5E3, a property's name, or a selector in brackets

Words are read in either case, names are not. `--` begins a comment that ends with its line, `/* */` holds one.

NOT binds tightest: `NOT a = 1` is `(NOT a) = 1`, which no message is. There are no sums, no LIKE, no CONTAINS.

A property is a string, or NULL where the message does not have it. Logic has three values; a message matches where the
whole expression is TRUE, not where it is NULL. What comparing computes:

    strings with > >= < <=      as doubles
    a string with = <> a string as they stand
    a string with a number      as a number of that kind: an int (up to 2^31), a long, a double
    a string with a boolean     TRUE where it is `true` in any case
    NULL                        `a = 5` and `a > 5` are NULL, `5 = a` is FALSE, `a = b` is TRUE where both are missing
    a string that is no such number, and TRUE = a string     the whole expression matches nothing

`compile` refuses what can have no value: text or booleans with > and its like, = NULL, a range that ends before it
begins, a number that is none, and 0.0, which is below the least double that Apache takes.

An `Expression` is a nest of closures and does no more than look up and compare. It is pure and may be shared.
The grammar library is loaded with this module; import it only where a filter asks for it.

Answers to `SelectorParser`, `ComparisonExpression`, `UnaryExpression` and `ConstantExpression` of Apache RocketMQ
4.9.8. Deliberate differences: what follows a whole expression is refused, where Apache passes it over in silence (its
`a LIKE 'x%'` means `a` and matches nothing); and so is an expression that is nested more than 200 deep.
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
"""How deep conditions may be nested; each level is one call when a message is looked at."""

_INT_END = 1 << 31
_LONG_END = 1 << 63
_MIN_DOUBLE, _MAX_DOUBLE = 5e-324, 1.7976931348623157e308

_Evaluate: TypeAlias = Callable[[Mapping[str, str]], Any]
"""The value of a term for a message's properties. Raises _NoValueError where the message makes none possible."""
_Convert: TypeAlias = Callable[[Any], Any]


class Expression:
    """A compiled filter; `text` is what it was compiled from."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: _Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is wanted."""
        try:
            return self._evaluate(properties) is True
        except _NoValueError:
            return False


def compile(expression: str) -> Expression:
    """The filter that an expression describes. InvalidExpression says what is wrong with it, and where."""
    try:
        selector: Any = _parser().parse(expression)
        return Expression(expression, _condition(selector).evaluate)
    except UnexpectedInput as error:
        raise InvalidExpression(expression, *_unexpected(expression, error)) from None
    except _MeaninglessError as error:
        raise InvalidExpression(expression, error.position, error.why) from None


@cache
def _parser() -> Lark:
    """Made once, in some 20 ms. Words are letters of ASCII, so that no other letter is taken for one of them."""
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Compiler(), g_regex_flags=re.ASCII)


def _unexpected(expression: str, error: UnexpectedInput) -> tuple[int, str]:
    """Where a text stops being an expression, and what stands there."""
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            return len(expression), "more is expected"
        return _start(error.token), f"{str(error.token)!r} is not expected"
    position = error.pos_in_stream or 0
    character = expression[position]
    return position, "the text is not closed" if character == "'" else f"{character!r} is not expected"


class _Type(Enum):
    """What a term's value is, where it is not NULL. Numbers are always constants."""

    TEXT = auto()
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NOTHING = auto()
    """It is always NULL."""


class _Role(Enum):
    """What a term is in the grammar, which decides where it may stand."""

    PROPERTY = auto()
    CONSTANT = auto()
    NEGATED = auto()
    CONDITION = auto()


_NUMBERS = (_Type.INT, _Type.LONG, _Type.DOUBLE)


@dataclass(frozen=True, slots=True)
class _Term:
    """A part of an expression, compiled. `constant` is the value of one that is the same for every message."""

    position: int
    role: _Role
    type: _Type
    evaluate: _Evaluate
    constant: str | int | float | None = None
    depth: int = 0


class _NoValueError(Exception):
    """The expression has no value for this message; it does not match."""


class _MeaninglessError(Exception):
    """A part of an expression that can have no value for any message."""

    def __init__(self, position: int, why: str) -> None:
        self.position = position
        self.why = why


@v_args(inline=True)
class _Compiler(Transformer[Token, _Term]):
    """Makes terms as the parser finds them, innermost first. Its methods are the grammar's names."""

    def string(self, token: Token) -> _Term:
        return _constant(_start(token), _Role.CONSTANT, _Type.TEXT, _text(token))

    def decimal(self, token: Token) -> _Term:
        value = int(token.rstrip("lL")[:20])
        if value >= _LONG_END:
            raise _MeaninglessError(_start(token), f"{token} is above {_LONG_END - 1}, the greatest long")
        return _constant(_start(token), _Role.CONSTANT, _Type.INT if value < _INT_END else _Type.LONG, value)

    def floating(self, token: Token) -> _Term:
        value = float(token)
        if not _MIN_DOUBLE <= value <= _MAX_DOUBLE:
            raise _MeaninglessError(_start(token), f"{token} is no double between {_MIN_DOUBLE} and {_MAX_DOUBLE}")
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
    """What a literal text says."""
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
    """The term where a condition is needed. A property is one that is never TRUE, since it is a string."""
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
    """Conditions joined by OR, where a TRUE decides, or by AND, where a FALSE does. What follows is not looked at."""
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
    """What makes values of two types comparable with each other."""
    if left is right:
        return _SAME[left], _SAME[right]
    if _Type.NOTHING in (left, right):
        return _as_it_is, _as_it_is
    if left is _Type.TEXT:
        return _READ[right], _SAME[right]
    if right is _Type.TEXT:
        return _SAME[left] if left is not _Type.BOOLEAN else _refuse, _READ[left]
    if _Type.BOOLEAN in (left, right):
        return _never, _as_it_is
    return (_rank, _rank) if _Type.DOUBLE in (left, right) else (_as_it_is, _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _never(value: object) -> object:
    """Something that equals nothing else."""
    return object()


def _refuse(value: object) -> object:
    raise _NoValueError


_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)
_SPACE = "".join(map(chr, range(33)))
_DOUBLE_BITS, _LONG_BITS = Struct(">d"), Struct(">q")


def _integer(text: str, end: int) -> int:
    """A string as Java reads an integer below `end`: digits of any script, no spaces."""
    try:
        value = int(text) if _INTEGER.fullmatch(text) else end
    except ValueError:  # thousands of digits
        raise _NoValueError from None
    if not -end <= value < end:
        raise _NoValueError
    return value


def _int(text: str) -> int:
    return _integer(text, _INT_END)


def _long(text: str) -> int:
    return _integer(text, _LONG_END)


def _double(text: str) -> int:
    """The rank of a string that Java reads as a double."""
    text = text.strip(_SPACE)
    if not _DOUBLE.fullmatch(text):
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
    """An integer that orders doubles as Java does: -0.0 is below 0.0, NaN equals itself and is above all."""
    bits: int = _LONG_BITS.unpack(_DOUBLE_BITS.pack(number))[0] if number == number else _LONG_END - 1
    return bits if bits >= 0 else ~bits - _LONG_END


_READ: dict[_Type, _Convert] = {_Type.INT: _int, _Type.LONG: _long, _Type.DOUBLE: _double, _Type.BOOLEAN: _boolean}
"""How a string is read that is compared with a value of the type."""
_SAME: dict[_Type, _Convert] = dict.fromkeys(_Type, _as_it_is) | {_Type.DOUBLE: _rank}
"""How a value of the type is compared with another of it."""
