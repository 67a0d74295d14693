"""coco: images with boxes and keypoints, as COCO's annotation files list them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index
from gpupipe.dataset.paths import make_relative, missing_file, name_file, resolve_root
from gpupipe.dataset.source import Progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, shown
from gpupipe.runtime.files import open_regular
from gpupipe.runtime.installation import require_extra
from gpupipe.schema.field_types import expand_home
from gpupipe.sources.helpers.coco_specs import COCO_SPECS

if TYPE_CHECKING:
    from gpupipe.formats.coco import CocoFile

_PERSON_PAIRS = tuple((left, left + 1) for left in range(1, 17, 2))
"""The left and right keypoints of COCO's persons: eyes, ears, shoulders, ..., ankles."""
_NUM_PERSON_POINTS = 17


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, (str, Path)) else value


class Coco(FileSource):
    """The images of COCO annotation files, with their boxes, and keypoints if asked for.

    A batch has `boxes`, `labels`, `area` and `iscrowd` of each image's annotations, and `image_id`.
    The files are read once, into an index in the cache folder. Needs msgspec.

    Attributes:
        root: The folder that the `file_name` of images is relative to. ~ stands for the home
            directory.
        annotations: The annotation file, or several with the same categories, which list different
            images. ~ stands for the home directory.
        keypoints: Whether to read keypoints, as `keypoints` and `visibility`.
        flip_pairs: Pairs of keypoints that a horizontal flip swaps, such as [[0, 1]], counted from
            0. By default those of COCO's persons.
        classes: contiguous: labels count from 0, in the order of the category ids. original: labels
            are the category ids.
        crowd: Whether to keep annotations that stand for a crowd (`iscrowd` of 1).
        empty: Whether to keep images without annotations.
        bad_boxes: error: an image with a box that has no area, or that lies outside of the image,
            is a broken sample, as `loader.on_error` says. drop: such boxes are left out.
    """

    name: ClassVar[str] = "coco"

    root: Annotated[Path, AfterValidator(expand_home)]
    annotations: Annotated[
        tuple[Annotated[Path, AfterValidator(expand_home)], ...],
        BeforeValidator(_as_list),
        Field(min_length=1),
    ]
    keypoints: bool = False
    flip_pairs: tuple[tuple[int, int], ...] | None = None
    classes: Literal["contiguous", "original"] = "contiguous"
    crowd: Literal["drop", "keep"] = "drop"
    empty: Literal["keep", "drop"] = "keep"
    bad_boxes: Literal["error", "drop"] = "error"

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return ("image",), ("image_id",)

    def annotation_specs(self) -> dict[str, Spec]:
        specs = dict(COCO_SPECS)
        if self.keypoints:
            pairs = _PERSON_PAIRS if self.flip_pairs is None else self.flip_pairs
            specs["keypoints"] = Spec.of_points(rows_with="boxes", flip_pairs=pairs)
            specs["visibility"] = Spec.of_rows(
                "int64", rows_with="boxes", shape=(None,), visibility_of="keypoints"
            )
        return specs

    def list_files(self) -> list[Path]:
        require_extra("coco", ("msgspec",), f"reading {self.annotations[0]}", DataError)
        for path in self.annotations:
            if not path.is_file():
                raise missing_file(path, "data.annotations", "set data.annotations to the file")
        return list(self.annotations)

    def build(self, files: list[Path], progress: Progress) -> Index:
        from gpupipe.sources.helpers.coco_index import CocoChoices, CocoPart, build_coco_index

        root = resolve_root(self.root)
        roots = [str(self.root.absolute()), str(root)]
        parts: list[CocoPart] = []
        for path in files:
            content = self._read_file(path, progress)
            if parts and content.categories != parts[0].content.categories:
                raise DataError(
                    f"{path}: its categories are not those of {files[0]}: all files of "
                    "data.annotations have the same"
                )
            parts.append(CocoPart(path, content, _name_images(path, content, roots)))
        choices = CocoChoices(
            keeps_ids=self.classes == "original",
            drops_crowds=self.crowd == "drop",
            drops_empty=self.empty == "drop",
            drops_bad_boxes=self.bad_boxes == "drop",
            has_keypoints=self.keypoints,
        )
        return build_coco_index(str(root), parts, choices)

    def _read_file(self, path: Path, progress: Progress) -> "CocoFile":
        from gpupipe.formats.coco import read_coco

        def tick(count: int) -> None:
            progress("reading annotations", count, None)

        with name_file(path), open_regular(path) as stream:
            content = read_coco(stream, self.keypoints, tick)
        count = content.annotations.keypoints.shape[1]
        pairs = self.flip_pairs
        if self.keypoints and pairs is None and count != _NUM_PERSON_POINTS:
            raise DataError(
                f"{path}: {count} keypoints, and not the {_NUM_PERSON_POINTS} of COCO's persons: "
                "set data.flip_pairs to those that a horizontal flip swaps, or to []"
            )
        if any(not 0 <= number < count for pair in pairs or () for number in pair):
            raise DataError(
                f"data.flip_pairs is {shown(list(map(list, pairs or ())))}, but {path} has the "
                f"keypoints 0 to {count - 1}"
            )
        return content


def _name_images(path: Path, content: "CocoFile", roots: list[str]) -> list[str]:
    """Return the paths of a file's images, relative to the root."""
    return make_relative(content.file_names, roots, lambda i: f"{path}: images[{i}]")
