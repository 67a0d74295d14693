"""Each entry of Args and each backticked name in a docstring of gpupipe exists."""

import ast
import builtins
import keyword
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES_OF_OTHERS = {
    **dict.fromkeys(("object_spilling_threshold", "_node_ip_address"), "Ray's own"),
    **dict.fromkeys(("streams", "ServerDataStream"), "Fuel"),
    **dict.fromkeys(("DataContext", "get_current", "execution_options", "preserve_order"), "Ray"),
    "write_parquet": "Ray Data",
    "translate_pct": "timm",
    **dict.fromkeys(("MyBase", "PID"), "the reader's"),
}
"""Words of backticked names that stand in no code of gpupipe, and whose they are."""
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parse_modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "gpupipe").rglob("*.py"))}


@cache
def find_classes() -> dict[str, list[ast.ClassDef]]:
    """The classes of gpupipe, by name."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for tree in parse_modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    return classes


@cache
def list_docstrings() -> list[tuple[str, Documented, str]]:
    """Return place, what is documented, and docstring; a text below a value counts as one."""
    return list(iter_docstrings())


def iter_docstrings() -> Iterator[tuple[str, Documented, str]]:
    for path, tree in parse_modules().items():
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            for statement in body if isinstance(body, list) else []:
                value = getattr(statement, "value", None)
                if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant):
                    text = value.value if isinstance(value.value, str) else ""
                    yield f"{path.relative_to(ROOT)}:{statement.lineno}", node, text


def list_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {arg.arg for arg in every if arg}


@cache
def list_members(class_: ast.ClassDef) -> set[str]:
    """The arguments of a class, its fields and its attributes, with those of its bases."""
    members = {
        name
        for base in class_.bases
        for found in find_classes().get(ast.unparse(base).split("[")[0].split(".")[-1], [])
        if found is not class_
        for name in list_members(found)
    }
    for node in ast.walk(class_):
        match node:
            case ast.FunctionDef(name="__init__" | "__new__" | "__init_subclass__"):
                members |= list_parameters(node) | {node.name}
            case ast.FunctionDef():
                members.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()):
                members.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                members.add(name)
    slots = (ast.unparse(n.value) for n in class_.body if "__slots__" in ast.unparse(n)[:9])
    return members | {word for text in slots for word in re.findall(r"\w+", text)}


def list_entries(docstring: str) -> list[str]:
    """The names below Args and Attributes."""
    lines = docstring.expandtabs().split("\n")
    names: list[str] = []
    for number, line in enumerate(lines):
        if line.strip() in ("Args:", "Attributes:"):
            indent = len(line) - len(line.lstrip()) + 4
            for entry in lines[number + 1 :]:
                if entry.strip() and len(entry) - len(entry.lstrip()) < indent:
                    break
                if found := re.match(rf" {{{indent}}}\*{{0,2}}(\w+)(?: \([^)]*\))?:(\s|$)", entry):
                    names.append(found[1])
    return names


def test_each_entry_of_args_is_a_parameter_or_an_attribute() -> None:
    wrong, entries = [], 0
    for place, node, text in list_docstrings():
        if not isinstance(node, ast.Module):
            is_class = isinstance(node, ast.ClassDef)
            names = list_entries(text)
            entries += len(names)
            if names and (is_class or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
                known = list_members(node) if is_class else list_parameters(node)
                wrong += [f"{place}: {name}" for name in names if name not in known]
    assert not wrong, "\n".join(wrong)
    assert entries > 1000


def iter_words_of_code(path: Path) -> Iterator[str]:
    """Yield the words of a file; of Python those of names and strings that are no docstrings."""
    if path.suffix != ".py":
        yield from re.findall(r"\w+", path.read_text(errors="ignore"))
        return
    tree = parse_modules().get(path) or ast.parse(path.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, str) and name in ("id", "attr", "arg", "name", "asname", "module"):
                yield from value.split(".")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield from re.findall(r"\w+", node.value)


@cache
def find_words() -> frozenset[str]:
    """The words of the code, of its files' names, of Python and of what is installed."""
    words = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names, *NAMES_OF_OTHERS}
    words |= set(metadata.packages_distributions())
    names = ("setup.cfg", "pyproject.toml", "Makefile")
    folders = ("gpupipe", "native", "configs", "pipelines")
    every = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    for path in [*every, *(ROOT / name for name in names)]:
        words |= {path.stem, path.parent.name}
        if path.suffix in (".py", ".h", ".cpp", ".yaml", ".cfg", ".toml", "") and path.is_file():
            words |= set(iter_words_of_code(path))
    return frozenset(words)


def test_each_word_of_a_backticked_name_stands_in_the_code() -> None:
    words, wrong, names = find_words(), [], 0
    for place, _, text in list_docstrings():
        for name in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
            names += 1
            found = re.findall(r"[A-Za-z_]\w+(?![\w*])", name)
            missing = [word for word in found if word not in words]
            wrong += [f"{place}: `{name}`: {', '.join(missing)}"] if missing else []
    assert not wrong, "\n".join(wrong)
    assert names > 1000
