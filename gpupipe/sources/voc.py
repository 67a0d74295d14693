"""voc: images with boxes in Pascal VOC's XML."""

import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from gpupipe.dataset.annotation_building import BoxList
from gpupipe.dataset.annotation_faults import UNKNOWN_CLASS, UNREADABLE, FaultCollector
from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.paths import missing_file, name_file, resolve_root
from gpupipe.dataset.reading import read_each
from gpupipe.dataset.source import Progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, did_you_mean, shown
from gpupipe.formats.voc import MAX_BYTES, VocImage, parse_voc
from gpupipe.runtime.files import open_regular
from gpupipe.schema.field_types import expand_home

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
_FILES_PER_TASK = 64
_FIRST_PIXEL = (1.0, 1.0, 0.0, 0.0)
"""What to subtract from VOC's corners, to count from 0 to the far edge of the last pixel."""
_UNREAD = VocImage((0, 0), [], np.empty((0, 4)), np.empty(0, bool))


class Voc(FileSource):
    """The images of a Pascal VOC data set, with their boxes.

    The images of the set NAME are those that `root`/ImageSets/Main/NAME.txt lists, a line each.
    Image x is in `root`/JPEGImages, and its boxes are in `root`/Annotations/x.xml. A batch has
    `boxes`, `labels` and `difficult`. Pixels of VOC count from 1, and both ends of a box belong to
    it: the box of a whole image is [1, 1, W, H], which becomes [0, 0, W, H].

    Attributes:
        root: The folder, such as VOCdevkit/VOC2012. ~ stands for the home directory.
        image_set: The set of images, such as train, val or trainval.
        classes: The names of the classes, in the order of their labels. By default those of VOC.
        difficult: Whether to keep objects that are marked as difficult to recognise.
        bad_boxes: error: an image with a box that has no area, or that lies outside of the image,
            is a broken sample, as `loader.on_error` says. drop: such boxes are left out.
    """

    name: ClassVar[str] = "voc"

    root: Annotated[Path, AfterValidator(expand_home)]
    image_set: Annotated[str, Field(pattern=r"^[^/\x00]+$")]
    classes: Annotated[tuple[str, ...], Field(min_length=1)] = VOC_CLASSES
    difficult: Literal["keep", "drop"] = "keep"
    bad_boxes: Literal["error", "drop"] = "error"

    def annotation_specs(self) -> dict[str, Spec]:
        return {
            "boxes": Spec.of_boxes(),
            "labels": Spec.of_rows("int64", rows_with="boxes"),
            "difficult": Spec.of_rows("int64", rows_with="boxes"),
        }

    def list_files(self) -> list[Path]:
        """List the files of annotations. Raises DataError if the set of images is missing."""
        resolve_root(self.root)
        with name_file(self._set_file):
            if not self._set_file.is_file():
                raise missing_file(self._set_file, "data.image_set", self._name_sets())
            with open_regular(self._set_file) as stream:
                lines = stream.read().decode("utf-8-sig").splitlines()
        names = [self._check_name(n, line) for n, line in enumerate(lines, 1) if line.strip()]
        if not names:
            raise DataError(f"{self._set_file}: it lists no images")
        return [self.root / "Annotations" / f"{name}.xml" for name in names]

    @property
    def _set_file(self) -> Path:
        return self.root / "ImageSets" / "Main" / f"{self.image_set}.txt"

    def _name_sets(self) -> str:
        sets = sorted(path.stem for path in self._set_file.parent.glob("*.txt"))
        return f"set data.image_set{did_you_mean(self.image_set, sets)}"

    def _check_name(self, number: int, line: str) -> str:
        name = line.strip()
        if " " in name or "/" in name or "\0" in name:
            raise DataError(
                f"{self._set_file}:{number}: {shown(line)} is no name of an image: a set has one a "
                "line; sets of a single class, with a second column, are not read"
            )
        return name

    def find_companions(self, files: list[Path]) -> list[Path]:
        return [self._set_file]

    def build(self, files: list[Path], progress: Progress) -> Index:
        images = read_each(files, self.read, progress, "reading annotations", _FILES_PER_TASK)
        return self.join(files, images)

    def read(self, path: Path) -> VocImage | str:
        """Return the annotations of an image, or why they cannot be read."""
        with name_file(path), open_regular(path) as stream:
            content = stream.read(MAX_BYTES + 1)
        try:
            return parse_voc(content)
        except ValueError as e:
            return str(e)

    def _find_images(self, files: list[Path]) -> list[str]:
        """Return the path of the image of each file of annotations, relative to the root."""
        folder = self.root / "JPEGImages"
        with name_file(folder):
            names = {Path(name).stem: name for name in sorted(os.listdir(folder))}
        return [f"JPEGImages/{names.get(path.stem, f'{path.stem}.jpg')}" for path in files]

    def join(self, files: list[Path], parts: list[VocImage | str]) -> Index:
        images = [part if isinstance(part, VocImage) else _UNREAD for part in parts]
        if all(image is _UNREAD for image in images):
            raise DataError(f"{files[0]}: {parts[0]}; no file of annotations can be read")
        counts = [len(image.names) for image in images]
        rows = np.repeat(np.arange(len(files)), counts)
        firsts = np.cumsum([0, *counts])
        names = list(chain.from_iterable(image.names for image in images))
        is_difficult = np.concatenate([image.is_difficult for image in images])
        sizes = np.array([image.size for image in images], np.int32)
        faults = FaultCollector()
        unread = [n for n, part in enumerate(parts) if isinstance(part, str)]
        reasons = [f"{files[n]}: {parts[n]}" for n in unread]
        faults.add(UNREADABLE, np.array(unread, np.int64), reasons.__getitem__)
        boxes = BoxList(
            rows,
            np.concatenate([image.boxes for image in images]) - _FIRST_PIXEL,
            lambda i: f"{files[rows[i]]}: object {i - firsts[rows[i]] + 1}",
            ~is_difficult if self.difficult == "drop" else np.ones(len(names), bool),
        )
        number_of = {name: number for number, name in enumerate(self.classes)}
        labels = np.array([number_of.get(name, -1) for name in names], np.int32)
        boxes = boxes.add_faults(
            UNKNOWN_CLASS,
            labels < 0,
            lambda i: f"{shown(names[i])} is no class{did_you_mean(names[i], self.classes)}",
            faults,
        )
        columns = boxes.build_columns(
            {"labels": labels, "difficult": is_difficult},
            len(files),
            sizes,
            faults,
            self.bad_boxes == "drop",
        )
        index = build(
            str(self.root.resolve()),
            self._find_images(files),
            None,
            list(self.classes),
            {"annotation_counts": {"annotations": len(names)}, "annotation_faults": faults.counts},
            annotations=columns,
            sizes={"image": sizes} if sizes.all() else {},
        )
        return replace(index, faults=faults.join())
