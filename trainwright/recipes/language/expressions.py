"""``eval(...)`` in recipes: arithmetic over variables, and nothing else.

Python parses the text; what is worked out is a short list of forms, each met once. Nothing is called that a recipe
names, and every number stays small, so an expression from a stranger can neither do anything nor take long.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.registry import suggestion

LONGEST = 1000
MOST_NODES = 200
DEEPEST = 30
LARGEST_EXPONENT = 64
LARGEST_INT = 2**64
MOST_DIGITS = 20

Number = int | float

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
#: Name -> function, and how many arguments it takes at least and at most.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "min": (lambda *numbers: min(numbers), 1, MOST_NODES),
    "max": (lambda *numbers: max(numbers), 1, MOST_NODES),
    "abs": (abs, 1, 1),
    "round": (round, 1, 2),
    "int": (int, 1, 1),
    "float": (float, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "floor": (math.floor, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 2),
    "exp": (math.exp, 1, 1),
}


def is_expression(text: str) -> bool:
    """Whether a value of a recipe is to be evaluated: ``eval(...)`` and nothing around it."""
    return text.startswith("eval(")


def inside(text: str, where: str) -> str:
    """What stands in the brackets of ``eval(...)``."""
    if not text.endswith(")"):
        raise ConfigError(
            f"{where}: {_shown(text)} is not closed: the whole value must be eval(...); inside {{...}} or [...] put it "
            "in quotes."
        )
    return text.removeprefix("eval(")[:-1]


def evaluate(text: str, variables: Mapping[str, Any]) -> Any:
    """The value of an expression.

    A name alone gives its variable, whatever that is. In anything longer there are numbers, text to compare,
    ``+ - * / // % **``, comparisons, ``and or not``, ``a if b else c`` and min, max, abs, round, int, float, ceil,
    floor, sqrt, log, exp.

    >>> evaluate("max(epochs - 2, 1) * 0.5", {"epochs": 10})
    4.0
    >>> evaluate("(1).__class__", {})
    Traceback (most recent call last):
    trainwright.config.errors.ConfigError: eval((1).__class__): Attribute is not allowed here.
    """
    tree = _parse(text)
    if isinstance(tree, ast.Name):
        return _variable(tree.id, variables, text)
    return _Evaluation(text, variables).value(tree)


def names_in(text: str) -> list[str]:
    """Variables that an expression needs, in the order in which they come.

    >>> names_in("min(a, b) + a")
    ['a', 'b']
    """
    tree = _parse(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    return list(dict.fromkeys(node.id for node in sorted(names, key=lambda node: (node.lineno, node.col_offset))))


def _parse(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ConfigError(f"{_shown(f'eval({text})')}: longer than {LONGEST} characters.")
    # Before Python's parser sees it, which goes down by recursion.
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise _error(text, f"more than {DEEPEST} brackets inside each other")
    if "\\" in text:
        raise _error(text, "backslashes are not allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        problem = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _error(text, f"this is not an expression ({problem})") from None
    except (RecursionError, MemoryError):
        raise _error(text, f"more than {DEEPEST} levels inside each other") from None
    _refuse_size(tree, text)
    return tree


def _refuse_size(tree: ast.expr, text: str) -> None:
    count, level = 0, [tree]
    for _ in range(DEEPEST):
        count += len(level)
        if count > MOST_NODES:
            raise _error(text, f"more than {MOST_NODES} parts")
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if not level:
            return
    raise _error(text, f"more than {DEEPEST} levels inside each other")


def _variable(name: str, variables: Mapping[str, Any], text: str) -> Any:
    try:
        return variables[name]
    except KeyError:
        if name in _FUNCTIONS:
            raise _error(text, f"{name} is a function: call it") from None
        hint = suggestion(name, variables) or (f"; there are {', '.join(variables)}" if variables else "")
        raise _error(text, f"there is no variable {name!r}{hint}") from None


class _Evaluation:
    """One walk over one expression; each part is met at most once."""

    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        self.text = text
        self.variables = variables

    def value(self, node: ast.expr) -> Any:
        form = _FORMS.get(type(node))
        if form is None:
            raise _error(self.text, f"{type(node).__name__} is not allowed here")
        return self._checked(form(self, node))

    def _checked(self, value: object) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise _error(self.text, "a number that is not finite comes out")
        if isinstance(value, int) and abs(value) > LARGEST_INT:
            raise _error(self.text, "whole numbers above 2**64 are not worked with")
        return value

    def _number(self, node: ast.expr) -> Number:
        value = self.value(node)
        if not isinstance(value, (int, float)):
            raise _error(self.text, f"{value!r} is not a number")
        return value

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, (bool, int, float, str)):
            raise _error(self.text, f"{node.value!r} is not allowed here")
        return node.value

    def _name(self, node: ast.Name) -> Any:
        value = _variable(node.id, self.variables, self.text)
        if isinstance(value, (dict, list, tuple)):
            raise _error(self.text, f"{node.id} is a {type(value).__name__}: it can only stand alone, eval({node.id})")
        return value

    def _binop(self, node: ast.BinOp) -> Number:
        left, right = self._number(node.left), self._number(node.right)
        try:
            if isinstance(node.op, ast.Pow):
                return self._power(left, right)
            if type(node.op) not in _ARITHMETIC:
                raise _error(self.text, f"{type(node.op).__name__} is not allowed here")
            return _ARITHMETIC[type(node.op)](left, right)
        except ZeroDivisionError:
            raise _error(self.text, "division by zero") from None
        except OverflowError:
            raise _error(self.text, "the number is too large") from None

    def _power(self, base: Number, exponent: Number) -> Number:
        if abs(exponent) > LARGEST_EXPONENT:
            raise _error(self.text, f"an exponent beyond {LARGEST_EXPONENT} is not allowed")
        result = base**exponent
        if isinstance(result, complex):
            raise _error(self.text, "a fraction of a power of a negative number is not a number to train with")
        return result

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return not self.value(node.operand)
        if isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node.op, ast.UAdd):
            return +self._number(node.operand)
        raise _error(self.text, f"{type(node.op).__name__} is not allowed here")

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for sign, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other)
            if type(sign) not in _COMPARISONS:
                raise _error(self.text, f"{type(sign).__name__} is not allowed here")
            try:
                if not _COMPARISONS[type(sign)](left, right):
                    return False
            except TypeError:
                raise _error(self.text, f"{left!r} and {right!r} have no order") from None
            left = right
        return True

    def _boolop(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for item in node.values:
            value = self.value(item)
            if bool(value) is isinstance(node.op, ast.Or):
                break
        return value

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def _call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS or node.keywords or any(isinstance(item, ast.Starred) for item in node.args):
            known = ", ".join(_FUNCTIONS)
            raise _error(self.text, f"only {known} can be called, with numbers{suggestion(name, _FUNCTIONS)}")
        function, fewest, most = _FUNCTIONS[name]
        if not fewest <= len(node.args) <= most:
            raise _error(self.text, f"{name} does not take {len(node.args)} values")
        numbers = [self._number(item) for item in node.args]
        if name == "round" and len(numbers) > 1 and not (type(numbers[1]) is int and abs(numbers[1]) <= MOST_DIGITS):
            raise _error(self.text, f"round takes a whole number of digits, up to {MOST_DIGITS}")
        try:
            return function(*numbers)
        except (ValueError, OverflowError, ZeroDivisionError) as error:
            raise _error(self.text, f"{name}: {error}") from None


#: All there is to an expression.
_FORMS: dict[type[ast.expr], Callable[[_Evaluation, Any], Any]] = {
    ast.Constant: _Evaluation._constant,
    ast.Name: _Evaluation._name,
    ast.BinOp: _Evaluation._binop,
    ast.UnaryOp: _Evaluation._unaryop,
    ast.Compare: _Evaluation._compare,
    ast.BoolOp: _Evaluation._boolop,
    ast.IfExp: _Evaluation._ifexp,
    ast.Call: _Evaluation._call,
}


def _shown(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def _error(text: str, problem: str) -> ConfigError:
    return ConfigError(f"{_shown(f'eval({text})')}: {problem}.")
