"""The parts of the items of a data set: their names in a batch, and their bytes.

    item     b"..." | "a.jpg" | Image | array | (image, 3) | {"image": ..., "label": ...}
    parts    one for each image, array and number, learned from item 0
    bytes    an image file, or an array's numbers, as columns read them

Pixels of Pillow become image files that hold them as they are (PNM), so that images may differ in
size, and every pipeline begins with `decode`.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import ArrayLayout
from gpupipe.dataset.given_dataset import describe_value
from gpupipe.dataset.layout import default_layout
from gpupipe.dataset.reading import Span, read_spans
from gpupipe.dataset.source import RESERVED_NAMES
from gpupipe.dataset.spec import Spec
from gpupipe.decoders.pnm import as_pnm
from gpupipe.errors import DataError, did_you_mean
from gpupipe.formats.npy import DTYPES

LABEL, _ID = RESERVED_NAMES
AUTO = "auto"
Key = str | int | None
"""The place of a part in an item: a key of a dict, or of a tuple; None: the item itself."""
_NOTHING = object()
_FILE_KEYS = {"bytes", "path"}
"""The keys of an image that Hugging Face's `Image(decode=False)` leaves encoded."""
_NUMBERS = {"int64": int, "float64": float}
"""The type of Python whose numbers have a dtype."""
_DEEP_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True)
class ItemPart:
    """A part of every item.

    Attributes:
        name: Its name in a batch.
        key: Where it is in an item.
        spec: Its spec as the first step gets it.
        layout: The dtype and shape of an array or a number; None for an image.
    """

    name: str
    key: Key
    spec: Spec
    layout: ArrayLayout | None = None

    def select(self, item: Any) -> Any:
        """Return the part of an item. Raises ValueError if the item lacks it."""
        if self.key is None:
            return item
        try:
            return item[self.key]
        except (LookupError, TypeError) as e:
            key, kind = repr(self.key), describe_value(item)
            raise ValueError(f"it is {kind} without {key}, which the first item has") from e

    def encode(self, value: Any) -> NDArray[np.uint8] | str:
        """Return the bytes of a value, uint8 (bytes,); or the path of the file that has them.

        Raises:
            ValueError: The value is of another kind, dtype or shape than that of the first item.
        """
        if self.layout is None:
            encoded = _encode_file(value)
            if encoded is None:
                raise ValueError(
                    f"its '{self.name}' is {describe_value(value)}, but that of the first item is "
                    "an image: bytes, a path or a PIL image"
                )
            return encoded
        dtype, shape, advice = self.layout.dtype, self.layout.shape, ""
        array = as_numbers(value)
        if array is not None and not array.ndim:  # 1 in place of 1.0, or int32 in place of int64
            array = _cast(array, dtype)
        if array is None or (array.dtype.name, array.shape) != (dtype, shape):
            if array is not None and array.ndim > 1 and array.dtype == np.uint8:
                advice = "; images that differ in size are PIL images, as of Image.fromarray(array)"
            raise ValueError(
                f"its '{self.name}' is {describe_value(value)}, but that of the first item is "
                f"{dtype} {shape}{advice}"
            )
        return array.reshape(-1).view(np.uint8)

    def encode_each(self, values: Sequence[Any]) -> Sequence[NDArray[np.uint8] | str]:
        """Return what `encode` returns of each value: of numbers of Python, in one call.

        Raises:
            ValueError: As `encode`.
        """
        layout, types = self.layout, set(map(type, values))
        if layout is not None and not layout.shape and types == {_NUMBERS.get(layout.dtype)}:
            with suppress(OverflowError):  # int64 lacks the number: `encode` says so
                return list(np.array(values, layout.dtype)[:, None].view(np.uint8))
        return [self.encode(value) for value in values]


def as_numbers(value: Any) -> NDArray[Any] | None:
    """Return an array, a tensor, numbers or a list of them as an array; None for anything else."""
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        tensor = value.detach().cpu()
        try:
            value = tensor.numpy()
        except TypeError:  # bfloat16, which NumPy lacks
            return None
    if isinstance(value, list):
        try:
            value = np.array(value)
        except ValueError:  # rows of different lengths
            return None
    if not isinstance(value, (np.ndarray, np.generic, int, float)):
        return None
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.dtype.name in DTYPES else None


def _is_file(value: Any) -> bool:
    """Return whether a value is an image: encoded bytes, a path, or a PIL image."""
    is_file = isinstance(value, (bytes, bytearray, memoryview, os.PathLike))
    return is_file or _is_undecoded(value) or _is_pillow(value)


def _is_undecoded(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and value.keys() <= _FILE_KEYS


def _is_pillow(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "getbands") and hasattr(value, "mode")


def _encode_file(value: Any) -> NDArray[np.uint8] | str | None:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if _is_undecoded(value):
        data = value.get("bytes")
        return _encode_file(value.get("path") if data is None else data)
    return _encode_pillow(value) if _is_pillow(value) else None


def _encode_pillow(image: Any) -> NDArray[np.uint8]:
    """Return a PIL image as a PNM file, with the conversions that `decode` makes of files."""
    if image.mode in _DEEP_MODES:
        pixels = np.asarray(image).astype(np.uint16)
    else:
        is_plain = image.mode in ("L", "RGB")
        pixels = np.asarray(
            image if is_plain else image.convert("L" if image.mode == "1" else "RGB")
        )
    return as_pnm(pixels if pixels.ndim == 3 else pixels[..., None])


def encode_all(parts: Sequence[ItemPart], items: Sequence[Any]) -> list[list[NDArray[np.uint8]]]:
    """Return the bytes of each part of each item. Files that paths name are read in one call.

    Raises:
        OSError: A file cannot be read.
        ValueError: An item is not as the first one.
    """
    columns = [part.encode_each([part.select(item) for item in items]) for part in parts]
    encoded = list(zip(*columns, strict=True))
    paths = [value for values in encoded for value in values if isinstance(value, str)]
    files = iter(read_spans([Span(path) for path in paths]) if paths else ())
    return [[next(files) if isinstance(v, str) else v for v in values] for values in encoded]


@dataclass(frozen=True)
class PartChoice:
    """Which parts of items become fields of a batch.

    Attributes:
        fields: The key of each field, by its name; None: all parts.
        label: The key of the label; None: there is none. "auto": the key "label" of a dict, or the
            first whole number of a tuple.
    """

    fields: Mapping[str, str | int] | None = None
    label: str | int | None = AUTO

    def learn(self, item: Any, name: str) -> list[ItemPart]:
        """Return the parts of all items, as the first one has them; the main field is the first.

        Args:
            item: The first item.
            name: The name of the data set, for messages.

        Raises:
            DataError: A part cannot be delivered, or there is neither an image nor an array.
        """
        values = _split(item)
        label = self._find_label(values)
        main = self._find_main(values, label)
        if main is _NOTHING:
            raise DataError(
                f"{name}[0] is {describe_value(item)}, but an item is an image (bytes, a path, a "
                "PIL image), an array, or a tuple or dict of these with labels"
            )
        keys: Mapping[str, Key] = self.fields or {
            _name_part(key, key == main, values[key]): key for key in values if key != label
        }
        for field, key in [*keys.items(), *([] if label is _NOTHING else [(LABEL, label)])]:
            if wrong := _explain_wrong_part(field, key, main, values):
                raise DataError(f"{name}[0]{wrong}")
        parts = [_learn_part(field, key, values[key]) for field, key in keys.items()]
        parts.sort(key=lambda part: part.key != main)
        return parts if label is _NOTHING else [*parts, _learn_part(LABEL, label, values[label])]

    def without_label(self, parts: Sequence[ItemPart]) -> "PartChoice":
        """Return the choice of the same fields, by name, without the label.

        Args:
            parts: What `learn` returned.
        """
        keys = {part.name: part.key for part in parts if part.name != LABEL}
        return PartChoice({name: key for name, key in keys.items() if key is not None}, None)

    def _find_label(self, values: Mapping[Key, Any]) -> Any:
        """Return the key of the label; _NOTHING if there is none."""
        if self.label != AUTO:
            return _NOTHING if self.label is None else self.label
        named = set((self.fields or {}).values())
        if LABEL in values:
            return _NOTHING if LABEL in named else LABEL
        is_free = (key for key in values if isinstance(key, int) and key not in named)
        return next((key for key in is_free if _is_whole(values[key])), _NOTHING)

    def _find_main(self, values: Mapping[Key, Any], label: Any) -> Any:
        """Return the key of the first image, array or path; _NOTHING if there is none."""
        keys = [*self.fields.values()] if self.fields else [k for k in values if k != label]
        pixels = (k for k in keys if k in values and _is_file_or_array(values[k]))
        texts = (k for k in keys if k in values and isinstance(values[k], str))
        return next(pixels, next(texts, keys[0] if self.fields else _NOTHING))


def _explain_wrong_part(field: str, key: Key, main: Key, values: Mapping[Key, Any]) -> str:
    """Return why a part cannot be delivered, after the name of the item; "" if it can."""
    if key not in values:
        hint = did_you_mean(str(key), [str(k) for k in values])
        return f" has no {key!r}{hint}: see data.fields and data.label"
    at = "" if key is None else f"[{key!r}]"
    usable = [k for k, v in values.items() if k == main or _is_file(v) or as_numbers(v) is not None]
    names = {
        k: f"field_{n}" if k == _ID or not isinstance(k, str) else k for n, k in enumerate(usable)
    }
    advice = ", ".join(f"{'image' if k == main else names[k]}: {k}" for k in usable if k != LABEL)
    advice = f"name what to deliver, such as data.fields {{{advice}}}"
    if field == _ID:
        return f"{at}: '{_ID}' is taken in a batch: {advice}"
    if key in usable:
        return ""
    wrong = f"{at} is {describe_value(values[key])}, no image and no number"
    if field == LABEL:
        advice = (
            "a label is a number, such as the position of its class in the sorted names: return "
            "that, or set data.label to another key, or to null"
        )
    return f"{wrong}: {advice}"


def _split(item: Any) -> dict[Key, Any]:
    """Return the values in an item, by their keys; a single value has the key None."""
    if isinstance(item, Mapping) and not _is_undecoded(item):
        return dict(item)
    is_numbers = isinstance(item, list) and as_numbers(item) is not None
    if isinstance(item, (tuple, list)) and not is_numbers:
        return dict(enumerate(item))
    return {None: item}


def _cast(number: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return a number in a dtype; unchanged if the dtype is of another kind, or has no such int."""
    if not np.can_cast(number.dtype, dtype, "same_kind"):
        return number
    cast = number.astype(dtype)
    return number if cast.dtype.kind in "iu" and cast != number else cast


def _is_whole(value: Any) -> bool:
    array = None if isinstance(value, bool) else as_numbers(value)
    return array is not None and not array.ndim and array.dtype.kind in "iu"


def _is_file_or_array(value: Any) -> bool:
    if _is_file(value):
        return True
    array = as_numbers(value)
    return array is not None and array.ndim > 0


def _name_part(key: Key, is_main: bool, value: Any) -> str:
    """Return the name of a part in a batch: its key, or for a tuple what it is."""
    if isinstance(key, str):
        return key
    if not is_main:
        return f"field_{key}"
    return "array" if not _is_file(value) and np.ndim(value) == 1 else "image"


def _learn_part(name: str, key: Key, value: Any) -> ItemPart:
    array = None if _is_file(value) or isinstance(value, str) else as_numbers(value)
    if array is None:
        return ItemPart(name, key, Spec())
    if not array.ndim and array.dtype.kind in "iu":
        array = array.astype(np.int64)
    axes = default_layout(array.ndim)
    if isinstance(value, np.ndarray) and array.dtype == np.uint8 and array.shape[2:] in _CHANNELS:
        axes = "HWC"
    layout = ArrayLayout(array.dtype.name, array.shape)
    return ItemPart(name, key, Spec.of_array(array.dtype.name, array.shape, axes), layout)


_CHANNELS = ((1,), (3,), (4,))
"""The last axes of arrays (H, W, C), as Pillow and OpenCV make them."""
