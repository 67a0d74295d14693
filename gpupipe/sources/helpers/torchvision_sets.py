"""Data sets of torchvision whose files, labels or boxes are known without their `__getitem__`.

A subclass, a loader of the user's, or a transform that is still on a data set: `__getitem__` runs.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.index import Index
from gpupipe.dataset.paths import make_relative, resolve_root
from gpupipe.errors import DataError
from gpupipe.runtime.installation import require_extra
from gpupipe.sources.helpers.known_datasets import Labels, SampleFiles, list_classes

_MODULE = "torchvision.datasets"


def is_torchvision(dataset: Any) -> bool:
    """Return whether the class of a data set is one of torchvision's own."""
    return type(dataset).__module__.startswith(_MODULE)


def _is_plain(dataset: Any, name: str) -> bool:
    """Return whether a data set is torchvision's own class `name`, and changes no item."""
    is_named = is_torchvision(dataset) and type(dataset).__name__ == name
    return is_named and not any(
        getattr(dataset, key, None) for key in ("transform", "target_transform", "transforms")
    )


def find_image_folder(dataset: Any) -> SampleFiles | None:
    """Return the files and classes of an ImageFolder; None of any other data set."""
    if not _is_plain(dataset, "ImageFolder"):
        return None
    from torchvision.datasets.folder import default_loader

    if dataset.loader is not default_loader:
        return None
    labels = np.array([label for _, label in dataset.samples], np.int64)
    root = str(Path(dataset.root).absolute())
    paths = [path for path, _ in dataset.samples]
    is_inside = all(path.startswith(f"{root}/") for path in paths)
    return SampleFiles(paths, (labels, list_classes(dataset)), root if is_inside else None)


def find_targets(dataset: Any) -> Labels | None:
    """Return the labels that a data set of torchvision holds as `targets`, as CIFAR does."""
    targets = getattr(dataset, "targets", None)
    if not is_torchvision(dataset) or getattr(dataset, "target_transform", None):
        return None
    if targets is None or len(targets) != len(dataset):
        return None
    numbers = np.asarray(targets)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or numbers.min() < 0:
        return None
    classes = list_classes(dataset)
    count = int(numbers.max()) + 1
    return numbers.astype(np.int64), (
        classes if len(classes) >= count else [str(n) for n in range(count)]
    )


def build_index_of_coco(dataset: Any) -> Index | None:
    """Return the images and boxes of a CocoDetection; None of any other data set.

    Labels are the ids of the categories, as in its items. Keypoints and masks are not read.

    Raises:
        DataError: An image or a category cannot be read, or msgspec is not installed.
    """
    if not _is_plain(dataset, "CocoDetection"):
        return None
    require_extra("coco", ("msgspec",), "reading a CocoDetection", DataError)
    import msgspec

    from gpupipe.formats.coco import read_coco
    from gpupipe.sources.helpers.coco_index import CocoChoices, CocoPart, build_coco_index

    ids = set(dataset.ids)
    records = dataset.coco.dataset
    annotations = [a for a in records["annotations"] if a["image_id"] in ids]
    text = msgspec.json.encode(
        {
            "images": [dataset.coco.imgs[id] for id in dataset.ids],
            "annotations": [{k: v for k, v in a.items() if k in _READ} for a in annotations],
            "categories": records["categories"],
        }
    )
    name = Path("CocoDetection")
    try:
        content = read_coco(io.BytesIO(text), with_keypoints=False)
    except ValueError as e:
        raise DataError(f"{name}: {e}") from e
    root = resolve_root(Path(dataset.root))
    roots = [str(Path(dataset.root).absolute()), str(root)]
    names = make_relative(content.file_names, roots, lambda i: f"{name}: images[{i}]")
    choices = CocoChoices(
        keeps_ids=True,
        drops_crowds=False,
        drops_empty=False,
        drops_bad_boxes=False,
        has_keypoints=False,
    )
    return build_coco_index(str(root), [CocoPart(name, content, names)], choices)


_READ = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")
"""The keys of an annotation that are read."""
