"""Small changes of Python source, each on one line, as a mistake would make them.

cosmic-ray and mutmut have more operators. But they remove no statements, skip neither annotations
nor messages, and bring an SQL or a terminal library along.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_Node = ast.expr | ast.stmt

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
_FUNCTIONS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "floor": "ceil",
    "ceil": "floor",
}
_LOGGING = re.compile(r"^(self\.)?_?(log|logger|logging|warnings)\.")


@dataclass(frozen=True)
class Mutation:
    """A change of one line of a source. Columns are bytes, as ast counts them.

    Attributes:
        operator: The kind of the change.
        line: From 1.
        start, end: The columns of the text that is replaced.
        text: What stands there instead.
        shown: The change in words: the line before and after.
    """

    operator: str
    line: int
    start: int
    end: int
    text: str
    shown: str = ""


def apply(source: str, mutations: list[Mutation]) -> str:
    """Return the source with all changes; no two may be on one line."""
    assert len({m.line for m in mutations}) == len(mutations)
    lines = source.encode().splitlines(keepends=True)
    for m in mutations:
        line = lines[m.line - 1]
        lines[m.line - 1] = line[: m.start] + m.text.encode() + line[m.end :]
    return b"".join(lines).decode()


def find_mutations(source: str) -> list[Mutation]:
    """Return all changes of a source, in its order. For a few of them `is_mutant` is false.

    Left alone: docstrings, all other texts, annotations, decorators, imports, `__all__`, blocks of
    `if TYPE_CHECKING`, lines that log or warn, and what an exception is raised with.
    """
    lines = source.encode().splitlines()
    found = []
    for m in set(_Finder(lines).mutations(ast.parse(source))):
        line = lines[m.line - 1]
        after = line[: m.start] + m.text.encode() + line[m.end :]
        shown = f"{line.decode().strip()}  ->  {after.decode().strip()}"
        found.append(Mutation(m.operator, m.line, m.start, m.end, m.text, shown))
    return sorted(found, key=lambda m: (m.line, m.start, m.text))


def is_mutant(source: str, mutation: Mutation) -> bool:
    """Return whether the changed source compiles, and is another program."""
    changed = apply(source, [mutation])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compile(changed, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, SyntaxWarning):
        return False
    return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


class _Finder:
    """Walks through a source whose lines are known."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def mutations(self, node: ast.AST) -> Iterator[Mutation]:
        """Yield the changes in a node, also those that do not compile."""
        if find := _OPERATORS.get(type(node)):
            yield from find(self, node)
        for child in self._children(node):
            yield from self.mutations(child)

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the children of a node that may be changed."""
        if _is_left_alone(node):
            return
        skipped = {"annotation", "returns", "decorator_list", "type_params"}
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {"test", "body"}
        for name, value in ast.iter_fields(node):
            if name not in skipped:
                values = value if isinstance(value, list) else [value]
                yield from (child for child in values if isinstance(child, ast.AST))

    def _replace(self, operator: str, node: _Node, text: str) -> Iterator[Mutation]:
        """Replace a node, if it is on one line."""
        if node.lineno == node.end_lineno:
            assert node.end_col_offset is not None
            yield Mutation(operator, node.lineno, node.col_offset, node.end_col_offset, text)

    def _text(self, node: _Node) -> str:
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def _between(
        self, operator: str, a: _Node, b: _Node, swap: tuple[str, str]
    ) -> Iterator[Mutation]:
        """Replace the operator between two nodes: where it stands on the line of one of them."""
        assert a.end_lineno is not None and a.end_col_offset is not None
        for line in {a.end_lineno, b.lineno}:
            start = a.end_col_offset if line == a.end_lineno else 0
            end = b.col_offset if line == b.lineno else len(self._lines[line - 1])
            gap = self._lines[line - 1][start:end].split(b"#")[0]
            word = re.escape(swap[0]).replace(r"\ ", r"\s+")
            word = rf"\b{word}\b" if swap[0][0].isalpha() else word
            if match := re.search(word.encode(), gap):
                start, end = start + match.start(), start + match.end()
                yield Mutation(operator, line, start, end, swap[1])
                return

    def compare(self, node: ast.Compare) -> Iterator[Mutation]:
        sides = [node.left, *node.comparators]
        for a, b, op in zip(sides[:-1], sides[1:], node.ops, strict=True):
            yield from self._between("comparison", a, b, _COMPARISONS[type(op)])

    def arithmetic(self, node: ast.BinOp) -> Iterator[Mutation]:
        sides = (node.left, node.right)
        if type(node.op) in _ARITHMETIC and not any(map(_is_text_or_type, sides)):
            yield from self._between("arithmetic", *sides, _ARITHMETIC[type(node.op)])

    def augmented(self, node: ast.AugAssign) -> Iterator[Mutation]:
        if type(node.op) in _ARITHMETIC and not _is_text_or_type(node.value):
            swap = _ARITHMETIC[type(node.op)]
            yield from self._between("arithmetic", node.target, node.value, swap)
        yield from self._replace("removed statement", node, "pass")

    def bool_op(self, node: ast.BoolOp) -> Iterator[Mutation]:
        swap = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for a, b in zip(node.values[:-1], node.values[1:], strict=True):
            yield from self._between("and/or", a, b, swap)

    def unary(self, node: ast.UnaryOp) -> Iterator[Mutation]:
        if isinstance(node.op, (ast.Not, ast.USub)):
            operator = "not" if isinstance(node.op, ast.Not) else "sign"
            yield from self._replace(operator, node, f"({self._text(node.operand)})")

    def test(self, node: ast.If | ast.While | ast.IfExp) -> Iterator[Mutation]:
        if not isinstance(node.test, ast.UnaryOp) and "TYPE_CHECKING" not in self._text(node.test):
            yield from self._replace("not", node.test, f"not ({self._text(node.test)})")

    def constant(self, node: ast.Constant) -> Iterator[Mutation]:
        if isinstance(node.value, bool):
            yield from self._replace("True/False", node, repr(not node.value))
        elif isinstance(node.value, (int, float)):
            for change in (1, -1):
                yield from self._replace("constant", node, repr(node.value + change))

    def call(self, node: ast.Call) -> Iterator[Mutation]:
        function = node.func
        if isinstance(function, ast.Name) and function.id in _FUNCTIONS:
            yield from self._replace("function", function, _FUNCTIONS[function.id])
        elif isinstance(function, ast.Attribute) and function.attr in _FUNCTIONS:
            text = self._text(function).removesuffix(function.attr) + _FUNCTIONS[function.attr]
            yield from self._replace("function", function, text)

    def slice(self, node: ast.Slice) -> Iterator[Mutation]:
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield from self._replace("slice bound", bound, "")

    def remove(self, node: ast.stmt) -> Iterator[Mutation]:
        yield from self._replace("removed statement", node, "pass")

    def expression(self, node: ast.Expr) -> Iterator[Mutation]:
        if isinstance(node.value, ast.Call) and not _LOGGING.match(ast.unparse(node.value)):
            yield from self.remove(node)

    def assign(self, node: ast.Assign) -> Iterator[Mutation]:
        """Without its only assignment a local name is not defined, and everything fails."""
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            yield from self.remove(node)

    def returned(self, node: ast.Return) -> Iterator[Mutation]:
        if node.value is not None and not _is_none(node.value):
            yield from self._replace("return None", node, "return None")


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in ("strict", "frozen", "slots")  # these check what is so anyway
    if isinstance(node, ast.Assign):
        return "__all__" in ast.unparse(node.targets)
    if isinstance(node, ast.Expr):
        return _LOGGING.match(ast.unparse(node.value)) is not None
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) in ("Literal", "Annotated")
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.Assert))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text_or_type(node: ast.AST) -> bool:
    """Whether this is a text, a list, a dict, or a type as in `int | None`: with another operator
    the line would fail.
    """
    if isinstance(node, (ast.JoinedStr, ast.Dict, ast.List, ast.Tuple, ast.ListComp, ast.DictComp)):
        return True
    if isinstance(node, ast.Constant):
        return node.value is None or isinstance(node.value, (str, bytes))
    name = ast.unparse(node).split("[")[0].rsplit(".")[-1]
    is_type = name in ("int", "float", "str", "bytes", "bool", "list", "dict", "tuple", "set")
    return is_type or re.match(r"[A-Z]\w*[a-z]", name) is not None


_OPERATORS: dict[type[ast.AST], Callable[..., Iterator[Mutation]]] = {
    ast.Compare: _Finder.compare,
    ast.BinOp: _Finder.arithmetic,
    ast.AugAssign: _Finder.augmented,
    ast.BoolOp: _Finder.bool_op,
    ast.UnaryOp: _Finder.unary,
    ast.If: _Finder.test,
    ast.While: _Finder.test,
    ast.IfExp: _Finder.test,
    ast.Constant: _Finder.constant,
    ast.Call: _Finder.call,
    ast.Slice: _Finder.slice,
    ast.Expr: _Finder.expression,
    ast.Assign: _Finder.assign,
    ast.Return: _Finder.returned,
    ast.Raise: _Finder.remove,
    ast.Delete: _Finder.remove,
    ast.Break: _Finder.remove,
    ast.Continue: _Finder.remove,
}
