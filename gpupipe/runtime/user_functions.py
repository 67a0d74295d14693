"""Functions of the user: imports them, reads their parameters, and calls them on images.

A function is called with an image, and by its parameter names it gets more:

    stamp(image, strength)    the image; `strength` comes from the step's `args`
    stamp(image, rng)         a torch.Generator, or NumPy's if the annotation says so
    stamp(sample)             a dict with the image, by the name of its field

A class is constructed once a process, with `args`, and its objects are called.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.errors import name_error, nearest
from gpupipe.runtime.function_draws import check_call
from gpupipe.runtime.function_failures import CallFailedError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class UserCall:
    """What a step of a config says of the function that it calls.

    Attributes:
        name: The function's name, the same in every process.
        where: The place of the step in the config, or "".
        is_named: Whether the config has the name, so that another process finds the function.
        workers: The number of processes that call it; 0: the threads of this one.
        hash_text: Returns a hash of the function's text; "" if it has none.
        try_once: Calls the function on a drawn image, as the step does.
    """

    name: str
    where: str
    is_named: bool
    workers: int
    hash_text: Callable[[], str]
    try_once: Callable[[], object]


class FunctionMissingError(Exception):
    """A function cannot be imported or constructed; the message says why and what to write."""


_LOADED: dict[tuple[Any, ...], UserFunction] = {}
_LOADING = Lock()


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
    function: Any = import_object(call, folder) if isinstance(call, str) else call
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
        raise FunctionMissingError(
            f"{describe(function)} cannot be constructed: {name_error(e)}"
        ) from e


def import_object(path: str, folder: Path | None) -> Any:
    """Return what "module:name" names.

    Args:
        path: The name.
        folder: The folder in which the module may lie; None: Python's path alone.

    Raises:
        FunctionMissingError: There is no such module or name.
    """
    module, _, name = path.partition(":")
    found: Any = _import_module(module, folder)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = nearest(part, [known for known in dir(found) if not known.startswith("_")])
            advice = f"; did you mean '{near}'?" if near else ""
            raise FunctionMissingError(f"the module {module} has no '{name}'{advice}") from None
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
            f"the module {name} cannot be imported, {name_error(e)}{advice}"
        ) from e
    finally:
        if is_new:  # what it imports later lies there, too, but shadows no other module
            sys.path.remove(where)
            sys.path.append(where)


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


def find_source_file(call: Any) -> str:
    """Return the file where the code of a function, class or object lies; "" if it is unknown."""
    code = inspect.unwrap(getattr(call, "forward", call))
    has_file = inspect.isroutine(code) or isinstance(code, type)
    try:
        return inspect.getsourcefile(code if has_file else type(code)) or ""
    except TypeError:
        return ""


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

    def __call__(self, image: Tensor, field: str, seed: int) -> Tensor:
        """Call the function on an image.

        Args:
            image: A tensor that the function may change.
            field: The name of its field.
            seed: The seed of `rng`, 0 to 2**53 - 1.

        Raises:
            GlobalDrawsError: In check_draws(): the function draws from another generator.
            CallFailedError: The function returns no tensor.
            Exception: What the function raises.
        """
        return check_call(self.name, lambda own: self._call(own, field, seed), image)

    def _call(self, image: Tensor, field: str, seed: int) -> Tensor:
        import torch

        keywords = dict(self.args)
        if self.takes_rng:
            keywords["rng"] = self._create_generator(seed)
        with torch.no_grad():
            if self.takes_sample:
                output = self.function(sample={field: image}, **keywords)
                output = output.get(field) if isinstance(output, Mapping) else output
            else:
                output = self.function(image, **keywords)
        if isinstance(output, torch.Tensor):
            return output.as_subclass(torch.Tensor).detach()
        raise CallFailedError(
            f"returned a {type(output).__name__}, but should return a tensor: write "
            "torch.from_numpy for arrays"
        )

    def _create_generator(self, seed: int) -> Any:
        import torch

        annotation = self.parameters["rng"].annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__module__", "")
        if "numpy" in text or text.startswith("np."):
            return np.random.default_rng(seed)
        return torch.Generator().manual_seed(seed)

    def hash_text(self) -> str:
        """Return a hash of the text of the function, or of its object's class; "" if unknown."""
        code = inspect.unwrap(self.function)
        try:
            text = inspect.getsource(code if inspect.isroutine(code) else type(code))
        except (OSError, TypeError):
            return ""
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def source_file(self) -> str:
        """The file where the code of the function lies; "" if it is unknown."""
        return find_source_file(self.function)

    def find_line(self, stack: traceback.StackSummary) -> str:
        """Return " at FILE:LINE" of the innermost line of the function's file; "" if none."""
        lines = [frame.lineno for frame in stack if frame.filename == self.source_file]
        return f" at {self.source_file}:{lines[-1]}" if lines else ""
