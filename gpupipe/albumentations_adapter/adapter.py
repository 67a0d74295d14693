"""from_albumentations() turns a Compose of Albumentations into the steps of a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpupipe.albumentations_adapter.containers import CHOICES, UNFORCED
from gpupipe.albumentations_adapter.counterparts import COUNTERPARTS
from gpupipe.albumentations_adapter.items import as_one, is_on, make_item, without_on
from gpupipe.config import to_plain_types
from gpupipe.config.step_list import StepList
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, Problem, warn
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document, Loc
from gpupipe.torchvision_adapter.adapter import join_place
from gpupipe.torchvision_adapter.parameters import NoCounterpartError

_NEWEST = (2, 0, 8)
"""The last release under the MIT licence, against which the steps are compared."""
_CALL = "gpupipe.albumentations_adapter.calling:AlbumentationsTransform"
_SCALE = {"to_dtype": {"dtype": "float32", "scale": True}}
_D4 = ({"random_rotate_90": {"p": 1.0}}, "random_horizontal_flip")
"""Of the eight ways to turn and mirror a square, each is equally probable."""


def from_albumentations(
    transform: Any, *, mode: Literal["rgb", "gray"] = "rgb", masks: Sequence[str] = ()
) -> StepList:
    """Convert a Compose of Albumentations 2.0.8 to steps, of which `decode` is the first.

    A transform that a step equals becomes that step, which moves boxes, points and `masks` with the
    image. Every other transform is called by a step `python`, on the CPU; a warning names them.
    Its draws are seeded by the sample (`set_random_seed`), so that they are the same on every
    engine and after a resume. ToTensorV2 and NoOp need no step. The table, with what each step
    differs by, is in docs/tutorials/from_albumentations.md.

    `bbox_params` becomes `sanitize_bounding_boxes` at the end, and `keypoint_params` with
    `remove_invisible` becomes `sanitize_keypoints`. Their format and label fields are those of the
    source: see docs/detection.md.

    Args:
        transform: A Compose, another container, or a single transform.
        mode: The mode of `decode`: "rgb" (3 channels) or "gray" (1 channel).
        masks: The names of the fields of masks, which go through the steps that move pixels.

    Returns:
        The steps. load() takes them as `pipeline=`, and print() shows their YAML.

    Raises:
        ConfigError: If the order of the steps is invalid, or a transform cannot be converted: for
            example, it moves pixels, no step does what it does, and there are boxes, points or
            masks, which cannot follow it. The message lists all mistakes, each with advice.

    Examples:
        >>> compose = A.Compose([A.RandomCrop(224, 224), A.HorizontalFlip(), A.Normalize()])
        >>> print(gpupipe.from_albumentations(compose))
        - decode
        - random_crop:
            size: [224, 224]
        - random_horizontal_flip
        - to_dtype: {dtype: float32, scale: true}
        - normalize:
            mean: [0.485, 0.456, 0.406]
            std: [0.229, 0.224, 0.225]
    """
    _check_installed(transform)
    conversion = _Conversion(tuple(masks))
    parts = [*conversion.decode(mode), *conversion.convert(transform, "", False)]
    parts += conversion.read_params(transform)
    if conversion.problems:
        raise ConfigError(conversion.problems)
    steps = [part.item for part in parts]
    places: dict[Loc, str] = {(number,): part.where for number, part in enumerate(parts)}
    fields = {"image": Spec(), **{name: Spec(kind="mask") for name in masks}}
    document = Document("from_albumentations", steps, values=places)
    build_pipeline("from_albumentations", document, (), fields, conversion.annotations)
    if conversion.called:
        warn(
            f"no step equals {', '.join(conversion.called)}: a step 'python' calls each of them "
            "(docs/tutorials/from_albumentations.md)",
            UserWarning,
        )
    return StepList(steps)


def _check_installed(transform: Any) -> None:
    """Raise ConfigError if an object is not of Albumentations, or of a release that is not read."""
    package = type(transform).__module__.partition(".")[0]
    is_own = any(c.__module__.startswith("albumentations.") for c in type(transform).__mro__)
    if not is_own:
        advice = " write gpupipe.from_torchvision" if package == "torchvision" else ""
        raise ConfigError.at(
            "from_albumentations",
            f"it takes a Compose of Albumentations, but got a {type(transform).__name__}"
            f"{':' if advice else ''}{advice}",
        )
    import albumentations

    release = tuple(int(n) for n in albumentations.__version__.split(".")[:3] if n.isdigit())
    if not (2, 0) <= release <= _NEWEST:
        raise ConfigError.at(
            "from_albumentations",
            f"it reads Albumentations 2.0, up to 2.0.8, and {albumentations.__version__} is "
            "installed, whose transforms may differ: pip install albumentations==2.0.8",
        )


@dataclass(frozen=True)
class _Part:
    """A step in YAML form, and the place of its transform in the Compose, for messages."""

    item: Any
    where: str


class _Conversion:
    """Goes through a transform, and notes what happens on the way.

    Args:
        masks: The names of the fields of masks.

    Attributes:
        annotations: The fields of boxes and points that the Compose takes.
        called: The places of the transforms that a step `python` calls.
        problems: What cannot be converted.
    """

    def __init__(self, masks: tuple[str, ...]) -> None:
        self._masks = masks
        self.annotations: dict[str, Spec] = {}
        self.called: list[str] = []
        self.problems: list[Problem] = []

    def _add_problem(self, where: str, what: str) -> None:
        self.problems.append(Problem(where, what))

    def decode(self, mode: str) -> list[_Part]:
        """Return the first steps, which decode the image and the masks."""
        if not self._masks:
            return [_Part("decode" if mode == "rgb" else {"decode": {"mode": mode}}, "decode")]
        of_masks = {"mode": "gray", "on": list(self._masks)}
        items = [{"decode": {"mode": mode, "on": "image"}}, {"decode": of_masks}]
        return [_Part(item, "decode") for item in items]

    def convert(self, transform: Any, path: str, is_forced: bool) -> list[_Part]:
        """Return the steps of a transform.

        Args:
            transform: A transform or a container.
            path: Its place, such as "transforms[2]".
            is_forced: Whether it runs whatever its own p is, as in a OneOf.
        """
        name = type(transform).__name__ if _is_own(transform) else ""
        where = f"{path} ({type(transform).__name__})" if path else type(transform).__name__
        p = 1.0 if is_forced and name not in UNFORCED else float(transform.p)
        if name in ("ToTensorV2", "NoOp") or p == 0:
            return []
        if name in ("Compose", "Sequential"):
            return self._apply_all(transform, path, where, p)
        choice = CHOICES[name](transform, p) if name in CHOICES else None
        if choice is not None:
            return self._choose(transform, path, where, *choice)
        try:
            return self._take_step(transform, name, where, p)
        except NoCounterpartError:
            return self._call(transform, where, p)

    def _take_step(self, transform: Any, name: str, where: str, p: float) -> list[_Part]:
        """Return the steps of a class that has them; raise NoCounterpartError for others."""
        if name == "D4":
            items = [self._on_masks(item) for item in _D4]
            return self._with_p([_Part(item, where) for item in items], p, where)
        if name == "ToFloat" and transform.max_value in (None, 255):
            return self._with_p([_Part(_SCALE, where)], p, where)
        if name not in COUNTERPARTS:
            raise NoCounterpartError(name)
        row = COUNTERPARTS[name]
        item = make_item(row.step, dict(row.read(transform)), p if row.has_p else None)
        parts = [_Part(self._on_masks(item) if row.moves else item, where)]
        if row.step == "normalize":
            parts.insert(0, _Part(_SCALE, where))
        return parts if row.has_p else self._with_p(parts, p, where)

    def read_params(self, transform: Any) -> list[_Part]:
        """Return the steps that drop boxes and points, as bbox_params and keypoint_params say."""
        processors = getattr(transform, "processors", {})
        parts = []
        if getattr(transform, "additional_targets", {}):
            names = ", ".join(transform.additional_targets)
            self._add_problem(
                "additional_targets",
                f"{names}: name the fields of masks in from_albumentations(masks=...), and "
                "write 'on: [image, ...]' beside the steps for more images",
            )
        if boxes := processors.get("bboxes"):
            self.annotations["boxes"] = Spec.of_boxes()
            parts.append(self._sanitize(boxes.params))
        if points := processors.get("keypoints"):
            self.annotations["points"] = Spec.of_points()
            if points.params.remove_invisible:
                parts.append(_Part("sanitize_keypoints", "keypoint_params"))
        return parts

    def _sanitize(self, params: Any) -> _Part:
        for name in ("min_visibility", "max_accept_ratio"):
            if getattr(params, name):
                self._add_problem(
                    "bbox_params",
                    f"{name} is {getattr(params, name):g}, and no step drops boxes by it: "
                    "leave it out, or write min_area or min_width",
                )
        size = max(params.min_width, params.min_height, 1.0)
        if params.min_width != params.min_height:
            self._add_problem(
                "bbox_params",
                f"min_width is {params.min_width:g} and min_height {params.min_height:g}, and "
                "the step has one smallest side: write the same number for both",
            )
        parameters = {"min_size": size, "min_area": max(params.min_area, 1.0)}
        return _Part(make_item("sanitize_bounding_boxes", parameters, None), "bbox_params")

    def _apply_all(self, container: Any, path: str, where: str, p: float) -> list[_Part]:
        parts = [
            part
            for number, child in enumerate(container.transforms)
            for part in self.convert(child, join_place(path, number), False)
        ]
        return self._with_p(parts, p, where)

    def _choose(
        self,
        container: Any,
        path: str,
        where: str,
        p: float,
        step: str,
        weights: Sequence[float] | None,
    ) -> list[_Part]:
        """Return the step of a container that draws which of its transforms run."""
        ways = [
            self.convert(child, join_place(path, number), weights is not None)
            for number, child in enumerate(container.transforms)
        ]
        nested = [as_one([part.item for part in way]) for way in ways]
        is_even = weights is None or len(set(weights)) == 1
        parameters = {} if is_even or weights is None else {"p": [float(w) for w in weights]}
        item = {step: {**parameters, "transforms": [without_on(n) for n in nested]}}
        moves = any(is_on(n) for n in nested)
        return self._with_p([_Part(self._on_masks(item) if moves else item, where)], p, where)

    def _with_p(self, parts: list[_Part], p: float, where: str) -> list[_Part]:
        """Return the steps so that they run with a probability p."""
        if p >= 1 or not parts:
            return parts
        items = [part.item for part in parts]
        together = {"random_apply": {"p": p, "transforms": [without_on(item) for item in items]}}
        moves = any(is_on(item) for item in items)
        return [_Part(self._on_masks(together) if moves else together, where)]

    def _on_masks(self, item: Any) -> Any:
        """Return a step that works on the masks too."""
        if not self._masks:
            return item
        name, parameters = (item, {}) if isinstance(item, str) else next(iter(item.items()))
        return {name: {**parameters, "on": ["image", *self._masks]}}

    def _call(self, transform: Any, where: str, p: float) -> list[_Part]:
        """Return a step `python` that calls a transform, which draws by itself whether it runs."""
        moves = not _changes_values_alone(transform)
        if moves and self._masks:
            self._add_problem(
                where,
                "it moves pixels, no step equals it, and masks cannot follow a function: "
                "leave it out, or take one of docs/tutorials/from_albumentations.md",
            )
        if _calls_functions(transform):
            self._add_problem(
                where,
                "a Lambda calls a function of your code: write the step 'python: {call: "
                '"my_module:my_function"}\' in its place (docs/howto/function.md)',
            )
            return []
        try:
            description = to_plain_types(transform.to_dict()["transform"])
        except (NotImplementedError, ValueError, TypeError) as e:
            self._add_problem(
                where,
                f"Albumentations cannot write it down, {e}: call its function by a step "
                "'python' (docs/howto/function.md)",
            )
            return []
        self.called.append(where)
        parameters = {"call": _CALL, "args": {"transform": {**description, "p": p}}}
        return [_Part({"python": parameters | ({} if moves else {"moves_pixels": False})}, where)]


def _is_own(transform: Any) -> bool:
    return type(transform).__module__.startswith("albumentations.")


def _calls_functions(transform: Any) -> bool:
    """Return whether a transform is a Lambda or holds one. Albumentations writes no functions."""
    from albumentations import Lambda

    nested = getattr(transform, "transforms", None) or ()
    return isinstance(transform, Lambda) or any(map(_calls_functions, nested))


def _changes_values_alone(transform: Any) -> bool:
    from albumentations import ImageOnlyTransform

    children = getattr(transform, "transforms", None)
    if children is not None and not isinstance(transform, ImageOnlyTransform):
        return all(map(_changes_values_alone, children))
    return isinstance(transform, ImageOnlyTransform)
