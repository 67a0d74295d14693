"""from_torchvision() turns a torchvision Compose into the steps of a pipeline."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pydantic

from gpupipe.config import to_plain_types
from gpupipe.config.step_list import StepList, write_step
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, Problem, warn
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.step_registry import STEPS, advise_on_torchvision, to_snake_case
from gpupipe.runtime.function_draws import GlobalDrawsError, check_draws
from gpupipe.runtime.user_functions import find_function
from gpupipe.schema.document import UNRESOLVED, Document, Loc
from gpupipe.schema.validation_errors import to_problems
from gpupipe.torchvision_adapter.parameters import NoCounterpartError, read_dtype, read_parameters

_OWN_STEP = "write a step of your own (CONTRIBUTING.md, 'Add a step')"
_NOTHING_TO_DO = ("ToImage", "PILToTensor", "ToPureTensor")
"""Classes that only convert the image to a tensor, which `decode` does already."""
_ANNOTATIONS = {"boxes": Spec.of_boxes(), "points": Spec.of_points()}
_BATCH_STEPS = {"CutMix": "cutmix", "MixUp": "mixup"}


def from_torchvision(
    transform: Callable[..., Any], *, mode: Literal["rgb", "gray"] = "rgb"
) -> StepList:
    """Convert a torchvision transform to steps, of which `decode` is the first.

    It reads transforms of torchvision.transforms.v2, those of torchvision.transforms, and
    `weights.transforms()` of classification models. The parameters are the attributes of the
    objects; those that have their defaults are left out. ToImage, PILToTensor and ToPureTensor need
    no step. Boxes and points move with their image, as there, and all fields that go with the boxes
    lose the rows that SanitizeBoundingBoxes drops, whatever its labels_getter is. torchvision also
    moves masks. Here a step works on the image alone, unless it has `on: [image, mask]`
    (docs/configuration.md).

    Functions, and transforms of classes that are not torchvision's, become steps `python`, which
    call them on tensors (C, H, W); a warning names them. What draws from global generators, as such
    transforms do, runs in a process of its own (`workers: 1`), so that its draws can be repeated.

    Args:
        transform: A Compose, another container, or a single transform.
        mode: The mode of `decode`: "rgb" (3 channels) or "gray" (1 channel).

    Returns:
        The steps. load() takes them as `pipeline=`, and print() shows their YAML.

    Raises:
        ConfigError: If the order of the steps is invalid, or a transform of torchvision has no
            counterpart: for example, it has a parameter that the step lacks. The message lists all
            mistakes, each with advice.
        StepError: If a function fails on a drawn image.

    Examples:
        >>> compose = v2.Compose([v2.RandomResizedCrop(224), v2.ToImage(),
        ...                       v2.ToDtype(torch.float32, scale=True)])
        >>> print(gpupipe.from_torchvision(compose))
        - decode
        - random_resized_crop:
            size: [224, 224]
        - to_dtype: {dtype: float32, scale: true}
    """
    problems: list[Problem] = []
    decode = _Adapted("decode" if mode == "rgb" else {"decode": {"mode": mode}}, "decode")
    adapted = [decode, *_adapt(transform, "", problems)]
    steps = [part.item for part in adapted]
    places: dict[Loc, str] = {}
    for number, part in enumerate(adapted):
        places.update(part.list_places((number,)))
    try:
        document = Document("from_torchvision", steps, values=places)
        build_pipeline("from_torchvision", document, annotations=_list_annotations(adapted))
    except ConfigError as e:
        problems += e.problems
    if problems:
        raise ConfigError(problems)
    if called := [place for part in adapted for place in part.list_called()]:
        warn(
            f"no step equals {', '.join(called)}: a step 'python' calls each of them, on tensors "
            "(C, H, W) (docs/howto/function.md)",
            UserWarning,
        )
    return StepList(steps)


@dataclass(frozen=True)
class _Adapted:
    """A step in YAML form, and the transform that it was adapted from.

    Attributes:
        item: The item of the list of steps; UNRESOLVED if the transform has no counterpart.
        where: The position of the transform in the Compose, for messages.
        nested: For a container: its steps.
    """

    item: Any
    where: str
    nested: "Sequence[_Adapted]" = ()

    def list_places(self, loc: Loc) -> dict[Loc, str]:
        """Return a dict from the paths of this item and of all nested ones to their `where`.

        Args:
            loc: The path of this item in the pipeline, such as (0,) for its first step.
        """
        places = {loc: self.where}
        for number, part in enumerate(self.nested):
            inner = (*loc, next(iter(self.item)), "transforms", number)
            places |= part.list_places(inner)
        return places

    def list_called(self) -> list[str]:
        """Return the places of the transforms that a step `python` calls."""
        own = [self.where] if isinstance(self.item, dict) and "python" in self.item else []
        return own + [place for part in self.nested for place in part.list_called()]


def _list_annotations(adapted: Iterable[_Adapted]) -> dict[str, Spec]:
    """Return specs of the annotations without which one of the steps makes no sense."""
    annotations: dict[str, Spec] = {}
    for part in adapted:
        if part.nested:
            annotations |= _list_annotations(part.nested)
        elif part.item is not UNRESOLVED:
            name = part.item if isinstance(part.item, str) else next(iter(part.item))
            annotations |= {kind: _ANNOTATIONS[kind] for kind in STEPS.find(name).needs}
    return annotations


def _adapt(transform: Any, path: str, problems: list[Problem]) -> list[_Adapted]:
    """Return the steps of one transform. A transform without a counterpart goes to `problems`."""
    transform = _write_out(transform)
    name, where = _own_name(transform), _describe_place(transform, path)
    if name in ("Compose", "Sequential"):
        parts = enumerate(_children(transform))
        return [a for n, part in parts for a in _adapt(part, join_place(path, n), problems)]
    if name in _NOTHING_TO_DO:
        return []
    if name in ("RandomApply", "RandomChoice", "RandomOrder"):
        return _adapt_container(name, transform, path, problems)
    if name in ("", "Lambda"):
        item: Any = _call_itself(transform, name)
    else:
        step = to_snake_case(name)
        try:
            if name in ("ToTensor", "ToDtype", "ConvertImageDtype"):
                step, parameters = "to_dtype", read_dtype(name, transform)
                if parameters["dtype"] is None:
                    return []
            elif step in STEPS.names():
                parameters = read_parameters(step, transform)
            else:
                raise NoCounterpartError(_advise(name, transform))
            item = _make_item(step, parameters, where, problems)
        except NoCounterpartError as e:
            problems.append(Problem(where, str(e)))
            item = UNRESOLVED
    return [_Adapted(item, where)]


def _call_itself(transform: Any, name: str) -> dict[str, Any]:
    """Return a step `python` for a function, or for a transform that is not torchvision's."""
    import torch

    call = transform
    if name == "Lambda" and getattr(transform, "types", (object,)) == (object,):
        call = transform.lambd
    try:
        with check_draws():
            find_function(call, {}, None)(torch.zeros(3, 64, 64, dtype=torch.uint8), "image", 0)
    except GlobalDrawsError:
        return {"python": {"call": call, "workers": 1}}
    except Exception:  # the image may be another than it needs: the trial of the pipeline tells
        pass
    return {"python": {"call": call}}


def _adapt_container(
    name: str, container: Any, path: str, problems: list[Problem]
) -> list[_Adapted]:
    where = _describe_place(container, path)
    ways = [
        _adapt(part, join_place(path, number), problems)
        for number, part in enumerate(_children(container))
    ]
    if name == "RandomApply":
        nested = [part for way in ways for part in way]
        parameters = {"p": container.p}
        if not nested:
            return []
    else:
        nested = [_as_one(way, where) for way in ways]
        weights = getattr(container, "p", None)
        parameters = {"p": list(weights)} if weights and len(set(weights)) > 1 else {}
    if any(part.item is UNRESOLVED for part in nested):
        return [_Adapted(UNRESOLVED, where)]
    parameters["transforms"] = [part.item for part in nested]
    return [_Adapted({to_snake_case(name): to_plain_types(parameters)}, where, nested)]


def _as_one(way: Sequence[_Adapted], where: str) -> _Adapted:
    """Return one step that runs the steps `way`, for the list of random_choice or random_order."""
    if any(part.item is UNRESOLVED for part in way):
        return _Adapted(UNRESOLVED, where)
    if len(way) == 1:
        return way[0]
    if not way:
        return _Adapted("identity", where)
    together = {"p": 1.0, "transforms": [part.item for part in way]}
    return _Adapted({"random_apply": together}, where, way)


def _make_item(
    step: str, parameters: dict[str, Any], where: str, problems: list[Problem]
) -> dict[str, Any] | str | Any:
    """Return a step in YAML form, without the parameters that have their defaults.

    If parameters are invalid, add the mistakes to `problems`, and return UNRESOLVED.
    """
    model = STEPS.find(step)
    try:
        checked = model.model_validate(parameters)
    except pydantic.ValidationError as e:
        problems += to_problems(e, model, Document(where, parameters), prefix=step)
        return UNRESOLVED
    return write_step(step, checked, parameters)


def _own_name(transform: Any) -> str:
    """Return the name of the transform's class if it is torchvision's own, or one of torch.nn's.

    Of torch.nn, nn.Sequential and nn.Identity are known.

    Return "" for any other class. This includes subclasses, which may differ from their base.
    """
    from torch import nn
    from torchvision import transforms
    from torchvision.transforms import v2

    kind = type(transform)
    own = [
        nn.Sequential,
        nn.Identity,
        *(getattr(module, kind.__name__, None) for module in (v2, transforms)),
    ]
    return kind.__name__ if any(kind is found for found in own) else ""


def _write_out(transform: Any) -> Any:
    """Expand a preset of pretrained weights to a Compose; return other transforms unchanged."""
    import torch
    from torchvision.transforms import v2
    from torchvision.transforms._presets import ImageClassification

    if type(transform) is not ImageClassification:
        return transform
    return v2.Compose(
        [
            v2.Resize(transform.resize_size, transform.interpolation, None, transform.antialias),
            v2.CenterCrop(transform.crop_size),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(transform.mean, transform.std),
        ]
    )


def _children(container: Any) -> Iterable[Any]:
    return getattr(container, "transforms", container)  # type: ignore[no-any-return]


def join_place(path: str, number: int) -> str:
    """Return the place of a transform in a container: "transforms[2].transforms[0]"."""
    return f"{path}{'.' if path else ''}transforms[{number}]"


def _describe_place(transform: Any, path: str) -> str:
    name = getattr(transform, "__name__", type(transform).__name__)
    return f"{path} ({name})" if path else name


def _advise(name: str, transform: Any) -> str:
    """Return why a transform has no counterpart, and what to write instead."""
    if name in _BATCH_STEPS:
        step = f"{_BATCH_STEPS[name]}: {{alpha: {transform.alpha:g}}}"
        return f"it mixes whole batches: write 'batch: [{step}]' in the config (docs/batch.md)"
    advice = advise_on_torchvision(name, ())
    return advice or f"there is no step '{to_snake_case(name)}': {_OWN_STEP}"
