"""Describes DALI's own operators from DALI's schemas: names, arguments and back ends.

The functions import DALI when they are called: only pipelines with the step `dali` need it. The
step calls `find_trial` to try an operator on small images; the DALI engine implements the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from gpupipe.dataset.spec import Spec
from gpupipe.errors import did_you_mean
from gpupipe.pipeline.step import Step
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime.registry import find_registration

Kind = Literal["number", "whole", "flag", "text", "dtype", "interp_type", "image_type", "other"]

_KINDS: dict[Kind, str] = {
    "number": "FLOAT FLOAT64 _FLOAT_VEC",
    "flag": "BOOL _BOOL_VEC",
    "text": "STRING _STRING_VEC TENSOR_LAYOUT",
    "dtype": "DATA_TYPE",
    "interp_type": "INTERP_TYPE",
    "image_type": "IMAGE_TYPE",
    "whole": "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 _INT32_VEC _INT64_VEC",
}
"""DALI's types of arguments, by the kind of their values."""
_KIND_OF_TYPE = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_WRITES_FILES = ("DumpImage",)


def is_installed() -> bool:
    """Return whether DALI is installed."""
    try:
        return find_spec("nvidia.dali") is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class Argument:
    """An argument of an operator.

    Attributes:
        name: The argument's name.
        kind: The kind of its values.
        is_list: Whether it takes a list of values.
        takes_tensor: Whether each sample may have a value of its own.
        is_required: Whether it has no default.
    """

    name: str
    kind: Kind
    is_list: bool
    takes_tensor: bool
    is_required: bool

    @property
    def names(self) -> dict[str, Any]:
        """The values that can be written by name, such as INTERP_LINEAR; {} for other kinds."""
        from nvidia.dali import types

        if self.kind == "interp_type":
            return dict(types.DALIInterpType.__members__)
        if self.kind == "image_type":
            return dict(types.DALIImageType.__members__)
        return _dtypes() if self.kind == "dtype" else {}


@dataclass(frozen=True)
class Operator:
    """An operator of DALI that takes one image and returns one.

    Attributes:
        name: The operator's name in nvidia.dali.fn, such as "color_twist" or "noise.gaussian".
        schema_name: The name of the operator's schema in DALI.
        backends: Where it runs: "cpu", "gpu", or both.
    """

    name: str
    schema_name: str
    backends: tuple[str, ...]

    @property
    def schema(self) -> Any:
        """DALI's schema object for the operator."""
        from nvidia.dali import backend

        return backend.GetSchema(self.schema_name)  # type: ignore[attr-defined]

    @property
    def function(self) -> Callable[..., Any]:
        """The function that adds the operator to a pipeline."""
        from nvidia.dali import fn

        function: Any = fn
        for part in self.name.split("."):
            function = getattr(function, part)
        return function  # type: ignore[no-any-return]

    @cached_property
    def arguments(self) -> Mapping[str, Argument]:
        """The arguments by name, without deprecated ones."""
        schema = self.schema
        names = [n for n in schema.GetArgumentNames() if not schema.IsDeprecatedArg(n)]
        return {name: _argument(schema, name) for name in names}

    def successor_of(self, argument: str) -> str:
        """Return what to do about a deprecated argument, such as "leave it out".

        Return "" if the argument is not deprecated.
        """
        schema = self.schema
        if argument not in schema.GetArgumentNames() or not schema.IsDeprecatedArg(argument):
            return ""
        info = schema.DeprecatedArgInfo(argument)
        renamed = info.get("renamed_to") if isinstance(info, dict) else None
        return f"write '{renamed}'" if renamed in self.arguments else "leave it out"


def names() -> list[str]:
    """Return the sorted names of the operators that `find` returns."""
    return sorted(name for name, schema_name in _all().items() if not _explain_refusal(schema_name))


@cache
def find(name: str) -> Operator:
    """Return the operator called `name`.

    Raises:
        LookupError: If there is no such operator, or the step `dali` cannot run it. The message
            suggests the nearest name, or what to write instead.
    """
    every = _all()
    if name not in every:
        known = names()
        raise LookupError(f"DALI has no operator '{name}'{_suggest(name, known)}")
    schema_name = every[name]
    if why := _explain_refusal(schema_name):
        raise LookupError(f"{name} {why}")
    return Operator(name, schema_name, _backends(schema_name))


def _suggest(name: str, known: list[str]) -> str:
    suggestion = did_you_mean(_to_snake_case(name), known)
    is_near = suggestion.startswith("; did you mean")
    return suggestion if is_near else "; see the operators of nvidia.dali.fn"


def _to_snake_case(name: str) -> str:
    """Convert ColorTwist to color_twist, and fn.color_twist to color_twist."""
    name = name.removeprefix("fn.")
    return "".join(
        f"_{c.lower()}" if c.isupper() and i and name[i - 1].islower() else c.lower()
        for i, c in enumerate(name)
    )


@cache
def _all() -> dict[str, str]:
    """Return the schema name of each public operator, by the operator's name."""
    from nvidia.dali import backend
    from nvidia.dali.ops import _names

    registered: set[str] = set()
    for list_names in (
        backend.RegisteredCPUOps,  # type: ignore[attr-defined]
        backend.RegisteredGPUOps,  # type: ignore[attr-defined]
        backend.RegisteredMixedOps,  # type: ignore[attr-defined]
    ):
        registered |= set(list_names())
    return {
        _names._op_name(schema_name): schema_name
        for schema_name in registered
        if not schema_name.startswith("_")
    }


def _backends(schema_name: str) -> tuple[str, ...]:
    from nvidia.dali import backend

    cpu = schema_name in backend.RegisteredCPUOps()  # type: ignore[attr-defined]
    gpu = schema_name in backend.RegisteredGPUOps()  # type: ignore[attr-defined]
    return (("cpu",) if cpu else ()) + (("gpu",) if gpu else ())


def _explain_refusal(schema_name: str) -> str:
    """Return why the step `dali` cannot run an operator, with advice; "" if it can."""
    from nvidia.dali import backend
    from nvidia.dali.ops import _names

    schema = backend.GetSchema(schema_name)  # type: ignore[attr-defined]
    if schema.IsDeprecated():
        successor = schema.DeprecatedInFavorOf()
        name = _names._op_name(successor) if successor else "another operator"
        return f"is deprecated: write {name}"
    if not _takes_image(schema) or not _backends(schema_name):
        why = "does not compute one image from one: write an operator that does"
    elif {"decoders", "io"} & set(schema.ModulePath()):
        why = "takes encoded bytes, and not pixels: write the step 'decode'"
    elif schema.HasRandomSeedArg():
        why = f"draws random numbers itself, and gpupipe draws all of them: {_instead(schema)}"
    elif schema_name in _WRITES_FILES:
        why = "writes files: leave it out; 'gpupipe run --show FILE' draws a batch"
    else:
        why = ""
    return why


def _takes_image(schema: Any) -> bool:
    if not schema.MinNumInput() <= 1 <= schema.MaxNumInput():
        return False
    layouts = {str(layout) for layout in schema.GetSupportedLayouts(0)}
    return not layouts or "HWC" in layouts


def _instead(schema: Any) -> str:
    """Return what to write instead of an operator that draws random numbers itself."""
    words = sorted((*schema.ModulePath(), *_to_snake_case(schema.OperatorName()).split("_")))
    step = next((s for s in STEPS.names() if sorted(s.split("_")) == words), None)
    if step:
        return f"write the step '{step}'"
    return "write an operator without a seed, with draws such as {uniform: [0.8, 1.2]}"


def _argument(schema: Any, name: str) -> Argument:
    written = str(schema.GetArgumentType(name)).rpartition(".")[2]
    return Argument(
        name,
        _KIND_OF_TYPE.get(written, "other"),
        written.endswith("_VEC"),
        schema.IsTensorArgument(name),
        not schema.IsArgumentOptional(name),
    )


@cache
def _dtypes() -> dict[str, Any]:
    """Return DALI's numeric dtypes by DALI's names, such as FLOAT, and by NumPy's names."""
    from nvidia.dali import types

    own = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
    floats = {"FLOAT16": "float16", "FLOAT": "float32", "FLOAT64": "float64", "BOOL": "bool"}
    both = {name: name.lower() for name in own} | floats
    return {name: getattr(types, dali) for dali, numpy in both.items() for name in (dali, numpy)}


@dataclass(frozen=True)
class Trial:
    """The outcome of running an operator on small images.

    Attributes:
        output_spec: The spec of the operator's output.
        size: [height, width] of each output; None for a side that keeps the input's size.
    """

    output_spec: Spec
    size: tuple[int | None, int | None]


class TryOperator(Protocol):
    """Runs an operator on small images."""

    def __call__(
        self, operator: Operator, make: Callable[..., Any], step: Step, input_spec: Spec
    ) -> Trial:
        """Run an operator on small images.

        Args:
            operator: The operator.
            make: Adds the operator to a DALI pipeline. It takes the pixels, a DataNode of layout
                HWC, and one DataNode per array that the step samples. It returns a DataNode.
            step: The step, whose `sample` draws the arguments.
            input_spec: The spec of the images.

        Raises:
            StepIncompatibleError: If the operator refuses such images. Also if an output is not one
                image that depends on its own input alone, or if its size cannot be predicted.
        """


def find_trial() -> TryOperator:
    """Return the function of the DALI engine that tries operators."""
    registration = find_registration("dali")
    assert registration is not None and registration.try_operator is not None
    return registration.try_operator
