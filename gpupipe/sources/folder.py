"""folder: image files in one folder per class, as in torchvision's ImageFolder."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from gpupipe.dataset import class_folders, index_cache
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.source import Progress, Source, ignore_progress
from gpupipe.schema.field_types import WHOLE, expand_home
from gpupipe.sources.helpers import dataset_catalog


class Folder(Source):
    """Images in `root`/CLASS/..., at any depth, in ImageFolder's order.

    Labels are the numbers of the class names in sorted order.

    Attributes:
        root: The folder; ~ stands for the home directory. Hidden files and folders are left out.
            Links are followed.
        label: "folder": the first folder below `root` is the class. null: there are no labels, and
            all images under `root` are read, also those in `root` itself. Batches have no "label".
        extensions: The file name extensions of images, in upper or lower case.
        fetch: Name of a data set to download to `root` if `root` does not exist.
        stand_in: Number of synthetic images to make in place of the data set if the download
            fails. By default a failed download is an error.
    """

    name: ClassVar[str] = "folder"

    root: Annotated[Path, AfterValidator(expand_home)]
    label: Literal["folder"] | None = "folder"
    extensions: tuple[str, ...] = Field(default=class_folders.IMAGE_EXTENSIONS, min_length=1)
    fetch: Annotated[str, AfterValidator(dataset_catalog.check_name)] | None = None
    stand_in: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None

    def index(self, progress: Progress = ignore_progress) -> Index:
        used = dataset_catalog.locate(self.root, self.fetch, self.stand_in, progress)
        root = used.resolve()
        unlabelled = () if self.label == "folder" else ("unlabelled",)
        saved = index_cache.get_path(self.name, root, self.extensions, *unlabelled)
        index = index_cache.open_saved(saved)
        if index is None or not _is_unchanged(root, index):
            started = time.time()
            index = self._scan(root, progress)
            index_cache.save_unless_racy(index, saved, max(index.extra["times"].values()), started)
        warning = dataset_catalog.explain_stand_in(used, self.root, self.fetch)
        return replace(index, note=dataset_catalog.describe_note(used), warning=warning)

    def explain_absence(self) -> str:
        return dataset_catalog.describe_absence(self.root, self.fetch, self.stand_in)

    def _scan(self, root: Path, progress: Progress) -> Index:
        has_labels = self.label is not None
        scan = class_folders.scan(root, self.extensions, "image", progress, has_labels)
        return build(str(root), scan.paths, scan.labels, scan.classes, {"times": scan.times})


def _is_unchanged(root: Path, index: Index) -> bool:
    """Return whether `index` is of `root`, and no folder in it has changed since the scan."""
    times = index.extra.get("times")
    if index.root != str(root) or not isinstance(times, dict) or "" not in times:
        return False
    try:
        return all(
            class_folders.get_change_time(os.stat(root / folder)) == then
            for folder, then in times.items()
        )
    except OSError:
        return False
