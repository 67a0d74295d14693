"""Describes DALI's own operators from DALI's schemas: names, arguments and back ends.

The functions import DALI when they are called: only pipelines with the step `dali` need it. The
DALI engine tries an operator on small images for the step, and returns a `Trial`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

from gpupipe.dataset.spec import Spec
from gpupipe.errors import did_you_mean
from gpupipe.pipeline.step_registry import STEPS, to_snake_case

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


@dataclass(frozen=True)
class Argument:
    """Describes one argument of a DALI operator.

    Attributes:
        name: The argument's name in DALI.
        kind: What the argument's values are, such as "number", "whole" (a whole number), or "flag"
            (true or false).
        is_list: Whether the argument takes a list of values.
        takes_tensor: Whether the argument may have a different value for each sample.
        is_required: Whether the argument has no default.
    """

    name: str
    kind: Kind
    is_list: bool
    takes_tensor: bool
    is_required: bool

    @property
    def names(self) -> dict[str, Any]:
        """A dict from names such as INTERP_LINEAR to DALI's constants; {} for other kinds."""
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
        """A dict from names to the operator's arguments, without deprecated ones."""
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


@cache
def find(name: str) -> Operator:
    """Return the operator called `name`.

    Raises:
        LookupError: If there is no such operator, or the step `dali` cannot run it. The message
            suggests the nearest name, or what to write instead.
    """
    operators = _list_operators()
    if name not in operators:
        known = sorted(n for n, operator in operators.items() if not _explain_refusal(operator))
        hint = did_you_mean(to_snake_case(name.removeprefix("fn.")), known)
        is_near = hint.startswith("; did you mean")
        advice = hint if is_near else "; see the operators of nvidia.dali.fn"
        raise LookupError(f"DALI has no operator '{name}'{advice}")
    if why := _explain_refusal(operators[name]):
        raise LookupError(f"{name} {why}")
    return operators[name]


@cache
def _list_operators() -> dict[str, Operator]:
    """Return a dict from the name of each public operator of DALI to the operator."""
    from nvidia.dali import backend
    from nvidia.dali.ops import _names

    registered: Any = backend  # DALI's types lack these functions
    on = {"cpu": set(registered.RegisteredCPUOps()), "gpu": set(registered.RegisteredGPUOps())}
    return {
        (name := _names._op_name(schema_name)): Operator(
            name, schema_name, tuple(device for device in on if schema_name in on[device])
        )
        for schema_name in on["cpu"] | on["gpu"] | set(registered.RegisteredMixedOps())
        if not schema_name.startswith("_")
    }


def _explain_refusal(operator: Operator) -> str:
    """Return why the step `dali` cannot run an operator, with advice; "" if it can."""
    from nvidia.dali.ops import _names

    schema = operator.schema
    if schema.IsDeprecated():
        successor = schema.DeprecatedInFavorOf()
        name = _names._op_name(successor) if successor else "another operator"
        return f"is deprecated: write {name}"
    if not _takes_image(schema) or not operator.backends:
        why = "does not compute one image from one: write an operator that does"
    elif {"decoders", "io"} & set(schema.ModulePath()):
        why = "takes encoded bytes, and not pixels: write the step 'decode'"
    elif schema.HasRandomSeedArg():
        why = f"draws random numbers itself, and gpupipe draws all of them: {_instead(schema)}"
    elif operator.schema_name in _WRITES_FILES:
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
    words = sorted((*schema.ModulePath(), *to_snake_case(schema.OperatorName()).split("_")))
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
    """Return a dict to DALI's numeric dtypes from DALI's names, such as FLOAT, and NumPy's."""
    from nvidia.dali import types

    own = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
    floats = {"FLOAT16": "float16", "FLOAT": "float32", "FLOAT64": "float64", "BOOL": "bool"}
    both = {name: name.lower() for name in own} | floats
    return {name: getattr(types, dali) for dali, numpy in both.items() for name in (dali, numpy)}


@dataclass(frozen=True)
class Trial:
    """What the DALI engine found out about an operator by running it on small images.

    Attributes:
        output_spec: The spec of the operator's output.
        size: [height, width] of each output; None for a side that keeps the input's size.
    """

    output_spec: Spec
    size: tuple[int | None, int | None]
