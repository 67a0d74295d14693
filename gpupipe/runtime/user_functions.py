"""Functions of the user: imports them, reads their parameters, and calls them on images.

A function is called with an image, and by its parameter names it gets more:

    stamp(image, strength)    the image; `strength` comes from the step's `args`
    stamp(image, rng)         a torch.Generator, or NumPy's if the annotation says so
    stamp(sample)             a dict with the image, by the name of its field

A class is constructed once a process, with `args`, and its objects are called.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import random
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class FunctionMissingError(Exception):
    """A function cannot be imported or constructed; the message says why and what to write."""


_IS_CHECKED: ContextVar[bool] = ContextVar("is_checked", default=False)
"""Whether calls check that the function draws from its `rng` alone."""
_LOADED: dict[tuple[Any, ...], UserFunction] = {}
_LOADING = Lock()
_FAILURES: deque[Exception] = deque(maxlen=1)


@contextmanager
def check_draws() -> Iterator[None]:
    """Let calls in the `with` block run twice, to find functions that draw elsewhere.

    No other thread may draw from global generators meanwhile. Afterwards they go on as before.
    """
    import torch

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    token = _IS_CHECKED.set(True)
    try:
        yield
    finally:
        _IS_CHECKED.reset(token)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def find_function(call: Any, args: Mapping[str, Any], folder: Path | None) -> UserFunction:
    """Return the function that a step calls. A class is constructed once a process.

    Args:
        call: "module:name", or the function, class or object itself.
        args: Keyword arguments of the class, or of each call of a function.
        folder: The folder in which the module may lie; None: Python's path alone.

    Raises:
        FunctionMissingError: There is no such function, or its class cannot be constructed.
    """
    of_call = call if isinstance(call, str) else id(call)
    key = (os.getpid(), of_call, json.dumps(dict(args), default=repr, sort_keys=True), folder)
    with _LOADING:
        if key not in _LOADED:
            _LOADED[key] = _create(call, args, folder)
        return _LOADED[key]


def _create(call: Any, args: Mapping[str, Any], folder: Path | None) -> UserFunction:
    function: Any = _import(call, folder) if isinstance(call, str) else call
    if not callable(function):
        raise FunctionMissingError(
            f"{describe(call)} is a {type(function).__name__}: name what can be called"
        )
    if not isinstance(function, type):
        return UserFunction(function, describe(function), args)
    try:
        made: Any = function(**args)
        return UserFunction(made, describe(function), {})
    except Exception as e:
        raise FunctionMissingError(f"{describe(function)} cannot be constructed: {_tell(e)}") from e


def _import(path: str, folder: Path | None) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = _import_module(module, folder)
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise FunctionMissingError(f"the module {module} has no '{name}'") from None
    return found


def _import_module(name: str, folder: Path | None) -> Any:
    top = name.partition(".")[0]
    beside = [] if folder is None else [folder / f"{top}.py", folder / top / "__init__.py"]
    file = next((path.resolve() for path in beside if path.is_file()), None)
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if file is not None and loaded is not None and Path(loaded).resolve() != file:
        raise FunctionMissingError(
            f"the module {top} is imported from {loaded} already, and {file} has the same name: "
            "rename one of them"
        )
    where = str(folder.resolve()) if folder is not None and file is not None else ""
    is_new = bool(where) and where not in sys.path
    if is_new:
        sys.path.insert(0, where)
    try:
        return importlib.import_module(name)
    except Exception as e:
        place = f"beside the YAML ({folder}) or " if folder is not None else ""
        advice = f": it must be {place}on Python's path" if isinstance(e, ImportError) else ""
        raise FunctionMissingError(
            f"the module {name} cannot be imported, {_tell(e)}{advice}"
        ) from e
    finally:
        if is_new:  # what it imports later lies there, too, but shadows no other module
            sys.path.remove(where)
            sys.path.append(where)


def _tell(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def name_function(call: Any) -> str:
    """Return "module:name" of a function; of an object that of its class, and how it is printed.

    A text is returned as it is. The name is the same in every process.
    """
    if isinstance(call, str):
        return call
    if hasattr(call, "__qualname__"):
        return f"{call.__module__}:{call.__qualname__}"
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(call).split()))
    return f"{type(call).__module__}:{type(call).__qualname__} {printed}"


def describe(call: Any) -> str:
    """Return the name of a function, and the file and line where its code begins, if known."""
    if isinstance(call, str):
        return call
    named = call if hasattr(call, "__qualname__") else type(call)
    try:
        file, line = inspect.getsourcefile(named), inspect.getsourcelines(named)[1]
    except (OSError, TypeError):  # it is written in C, or was typed into an interpreter
        return name_function(call)
    return f"{named.__qualname__} ({file}:{line})"


@dataclass(frozen=True)
class UserFunction:
    """A function, or an object that can be called, with what its parameters say.

    Attributes:
        function: What is called.
        name: Its name, file and line, for messages.
        args: Keyword arguments of each call.
    """

    function: Callable[..., Any]
    name: str
    args: Mapping[str, Any]

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters by name; none if the function is written in C."""
        code = getattr(self.function, "forward", self.function)  # nn.Module's __call__ says nothing
        for evaluate in (True, False):
            try:
                return inspect.signature(code, eval_str=evaluate).parameters
            except (TypeError, ValueError, NameError):
                continue
        return {}

    @property
    def takes_rng(self) -> bool:
        """Whether the function has a parameter `rng`."""
        return "rng" in self.parameters

    @property
    def takes_sample(self) -> bool:
        """Whether the function takes the dict of fields, in a parameter `sample`."""
        return "sample" in self.parameters

    def explain_misfit(self) -> str:
        """Return why the function cannot be called with an image and `args`; "" if it can."""
        if not self.parameters:
            return ""
        rng = {"rng": None} if self.takes_rng else {}
        try:
            inspect.Signature(list(self.parameters.values())).bind(None, **rng, **self.args)
        except TypeError as e:
            return f"{self.name} cannot be called with an image and args: {e}"
        return ""

    def __call__(self, image: Tensor, field: str, seed: int) -> Any:
        """Call the function on an image.

        Args:
            image: A tensor that the function may change.
            field: The name of its field.
            seed: The seed of `rng`, 0 to 2**53 - 1.

        Raises:
            GlobalDrawsError: In check_draws(): the function draws from another generator.
            Exception: What the function raises.
        """
        if not _IS_CHECKED.get():
            return self._call(image, field, seed)
        states, copy = _read_generators(), image.clone()
        output = self._call(image, field, seed)
        drawn = [name for name, state in _read_generators().items() if state != states[name]]
        again = self._call(copy, field, seed)
        drawn = drawn or ([] if _are_equal(output, again) else ["another generator"])
        if drawn:
            raise GlobalDrawsError(
                f"{self.name} draws from {' and '.join(drawn)}, so that its images would depend "
                "on which thread is first: let it draw from a parameter 'rng', a torch.Generator "
                "(or 'rng: np.random.Generator')"
            )
        return output

    def _call(self, image: Tensor, field: str, seed: int) -> Any:
        import torch

        keywords = dict(self.args)
        if self.takes_rng:
            keywords["rng"] = self._create_generator(seed)
        with torch.no_grad():
            if self.takes_sample:
                output = self.function(sample={field: image}, **keywords)
                return output.get(field) if isinstance(output, Mapping) else output
            return self.function(image, **keywords)

    def _create_generator(self, seed: int) -> Any:
        import torch

        annotation = self.parameters["rng"].annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__module__", "")
        if "numpy" in text or text.startswith("np."):
            return np.random.default_rng(seed)
        return torch.Generator().manual_seed(seed)


class GlobalDrawsError(Exception):
    """A function draws from a generator that all threads share."""


def record_failure(error: Exception) -> None:
    """Keep an error that a native engine may replace by its own; `take_failure` returns it."""
    _FAILURES.append(error)


def take_failure() -> Exception | None:
    """Return the last recorded error, and forget it; None if there is none."""
    return _FAILURES.pop() if _FAILURES else None


def _read_generators() -> dict[str, object]:
    """Return the states of the global generators, by name."""
    import torch

    numpy: Any = np.random.get_state(legacy=True)
    return {
        "torch's global generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's global generator": (numpy[1].tobytes(), *numpy[2:]),
        "Python's module random": random.getstate(),
    }


def _are_equal(first: Any, second: Any) -> bool:
    import torch

    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return type(first) is type(second)
    same = first.shape == second.shape and first.dtype == second.dtype
    return same and torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))


def find_line(error: BaseException, function: UserFunction) -> str:
    """Return "FILE:LINE" of the line of the function's file at which an exception passed; or ""."""
    code = inspect.unwrap(getattr(function.function, "forward", function.function))
    try:
        file = inspect.getsourcefile(code if inspect.isroutine(code) else type(code))
    except TypeError:
        return ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f"{file}:{lines[-1]}" if lines else ""
