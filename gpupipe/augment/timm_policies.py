"""Reads the strings of timm's policies, such as rand-m7-mstd0.5-inc1, and lists their operations.

Source: auto_augment_transform, rand_augment_transform, augment_and_mix_transform, LEVEL_TO_ARG and
AugmentOp in timm/data/auto_augment.py. timm applies its operations with PIL. gpupipe applies the
operations of policy_ops.py instead; `OPERATIONS` translates names and values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.policy import ChainMixture
from gpupipe.augment.policy_tables import IMAGENET, V0, SubPolicies
from gpupipe.errors import did_you_mean, nearest

Floats = NDArray[np.float64]

UNIFORM = float("inf")
"""As the standard deviation of levels, it means: draw levels uniformly."""
MAX_LEVEL = 10.0


class Strength(NamedTuple):
    """How a level becomes the value of an operation: f is level / 10, and u a uniform draw.

        core  = min(f * scale, limit), rounded down if `is_whole`
        value = max(start + factor * core, lowest), where the factor is 1, -1 or a drawn sign

    Attributes:
        scale: The factor of f.
        start: The value without a core. -0.0 also leaves a core of -0.0 as it is.
        factor: 1.0 or -1.0; 0.0 for a drawn sign.
        is_whole: Whether the core is rounded down to a whole number.
        limit: The largest core.
        lowest: The smallest value.
    """

    scale: float
    start: float = -0.0
    factor: float = 1.0
    is_whole: bool = False
    limit: float = np.inf
    lowest: float = -np.inf


_FACTORS = ("Color", "Contrast", "Brightness", "Sharpness")
OPERATIONS: dict[str, tuple[str, Strength]] = {
    **{n: (n, Strength(0.0)) for n in ("AutoContrast", "Equalize", "Invert")},
    "Rotate": ("Rotate", Strength(30.0, factor=0.0)),
    "Posterize": ("Posterize", Strength(4.0, is_whole=True)),
    "PosterizeIncreasing": ("Posterize", Strength(4.0, 4.0, -1.0, is_whole=True)),
    "PosterizeOriginal": ("Posterize", Strength(4.0, 4.0, is_whole=True)),
    "Solarize": ("Solarize", Strength(256.0, is_whole=True, limit=256.0)),
    "SolarizeIncreasing": ("Solarize", Strength(256.0, 256.0, -1.0, is_whole=True, limit=256.0)),
    "SolarizeAdd": ("SolarizeAdd", Strength(110.0, is_whole=True, limit=128.0)),
    **{n: (n, Strength(1.8, 0.1)) for n in _FACTORS},
    **{f"{n}Increasing": (n, Strength(0.9, 1.0, 0.0, lowest=0.1)) for n in _FACTORS},
    **{n: (n, Strength(0.3, factor=0.0)) for n in ("ShearX", "ShearY")},
    **{n: (n, Strength(0.45, factor=0.0)) for n in ("TranslateXRel", "TranslateYRel")},
    "TranslateXRelMix": ("TranslateXRel", Strength(0.3, factor=0.0)),
    "TranslateYRelMix": ("TranslateYRel", Strength(0.3, factor=0.0)),
    "Desaturate": ("Color", Strength(0.5, 0.5, -1.0, limit=0.5)),
    "GaussianBlur": ("GaussianBlur", Strength(1.9, 0.1, limit=1.9)),
    "GaussianBlurRand": ("GaussianBlur", Strength(2.0, limit=2.0)),
}
"""For each of timm's operations: its name in policy_ops.py, and how a level becomes its value.

A level is 0 to 10, or to `mmax`. TranslateXRelMix and TranslateYRelMix are timm's TranslateXRel and
TranslateYRel with the `translate_pct` of 0.3 that create_transform in
timm/data/transforms_factory.py sets for augmix. GaussianBlurRand takes the value v, and blurs with
0.1 + u * (v - 0.1), where u is a uniform draw.
"""


@cache
def op_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Translate timm's operation names to those of policy_ops.py; leave out repeated results."""
    return tuple(dict.fromkeys(OPERATIONS[name][0] for name in names))


RAND_OPS = tuple(
    """AutoContrast Equalize Invert Rotate Posterize Solarize SolarizeAdd Color Contrast Brightness
    Sharpness ShearX ShearY TranslateXRel TranslateYRel""".split()
)
_GROWS = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
"""The operations with a variant that grows stronger with the level."""
RAND_INCREASING_OPS = tuple(f"{n}Increasing" if n in _GROWS else n for n in RAND_OPS)
MIX_OPS = tuple(
    f"{n}Mix" if n.startswith("Translate") else n
    for n in RAND_INCREASING_OPS
    if n not in ("Invert", "SolarizeAdd")
)


def _weights(table: str) -> dict[str, float]:
    """Parse operations with weights, such as "Rotate 3, ShearX 2"."""
    return {name: float(weight) for name, weight in map(str.split, table.split(","))}


_OP_SETS = {
    "weights": _weights("""Rotate 3, ShearX 2, ShearY 2, TranslateXRel 1, TranslateYRel 1,
        ColorIncreasing .25, SharpnessIncreasing .25, AutoContrast .25, SolarizeIncreasing .05,
        SolarizeAdd .05, ContrastIncreasing .05, BrightnessIncreasing .05, Equalize .05,
        PosterizeIncreasing .05, Invert .05"""),
    "3aw": _weights("""SolarizeIncreasing 6, Desaturate 6, GaussianBlur 6, Rotate 3, ShearX 2,
        ShearY 2, PosterizeIncreasing 1, AutoContrast 1, ColorIncreasing 1, SharpnessIncreasing 1,
        ContrastIncreasing 1, BrightnessIncreasing 1, Equalize 1, Invert 1"""),
}
"""Weighted operations by set; in a policy string, the name of the set follows the letter t."""
_3A = ("SolarizeIncreasing", "Desaturate", "GaussianBlur")
_W0 = _weights("""Rotate .3, ShearX .2, ShearY .2, TranslateXRel .1, TranslateYRel .1, Color .025,
    Sharpness .025, AutoContrast .025, Solarize .005, SolarizeAdd .005, Contrast .005,
    Brightness .005, Equalize .005, Posterize 0, Invert 0""")
"""The weights of the section "w0", which timm supported until 2022."""


def _rename(table: SubPolicies, posterize: str) -> SubPolicies:
    """Return a copy of `table` in which the variant `posterize` replaces Posterize."""
    return tuple(
        tuple((posterize if name == "Posterize" else name, p, level) for name, p, level in pair)
        for pair in table
    )


AUTO_POLICIES: Mapping[str, SubPolicies] = {
    "v0": V0,
    "v0r": _rename(V0, "PosterizeIncreasing"),
    "original": _rename(IMAGENET, "PosterizeOriginal"),
    "originalr": _rename(IMAGENET, "PosterizeIncreasing"),
    "3a": ((("Solarize", 1.0, 5),), (("Desaturate", 1.0, 10),), (("GaussianBlurRand", 1.0, 10),)),
}
_KEYS = {
    "auto": ("mstd",),
    "rand": ("m", "n", "p", "mstd", "mmax", "inc", "w"),
    "augmix": ("m", "w", "d", "b", "mstd", "a"),
}
_WHOLE = ("m", "n", "w", "d", "mmax", "inc", "b")
_NAMES = (*AUTO_POLICIES, "rand", "augmix")
_MAX_COUNT = 16


@dataclass(frozen=True)
class TimmPolicy:
    """A policy of timm, parsed from a string such as "rand-m7-mstd0.5-inc1".

    Attributes:
        kind: "auto", "rand" or "augmix".
        ops: timm's names of the operations; for "auto" those of all sub-policies.
        sub_policies: For "auto": the table of sub-policies.
        weights: For "rand": the weights of the operations. Weighted operations are drawn without
            replacement. If None, all operations are equally probable.
        num_ops: For "auto" and "rand": how many operations are applied in turn.
        probability: For "rand": the probability that each drawn operation is applied.
        magnitude: The magnitude of all operations, for "rand" and "augmix".
        std: The standard deviation of the levels, the drawn strengths of operations; UNIFORM draws
            them uniformly, from 0 to the magnitude.
        largest: The largest level.
        mixture: For "augmix": how the chains of operations are drawn.
    """

    kind: str
    ops: tuple[str, ...]
    sub_policies: SubPolicies = ()
    weights: tuple[float, ...] | None = None
    num_ops: int = 2
    probability: float = 0.5
    magnitude: float = MAX_LEVEL
    std: float = 0.0
    largest: float = MAX_LEVEL
    mixture: ChainMixture | None = None


@cache
def read_policy(text: str) -> TimmPolicy:
    """Parse a policy string of timm.

    Raises:
        ValueError: If a part of the string is unknown to timm, is ignored by timm, or has a number
            out of range. The message names the part, and says what to write instead.
    """
    name, *sections = text.split("-")
    if name not in _NAMES:
        raise ValueError(
            f"policy {text!r}: there is no policy {name!r}{did_you_mean(name, _NAMES)}"
        )
    kind = "auto" if name in AUTO_POLICIES else name
    try:
        op_set, numbers = _read_sections(kind, sections)
        if kind == "auto":
            return _auto(name, numbers)
        return _rand(numbers, op_set) if kind == "rand" else _augmix(numbers)
    except ValueError as e:
        raise ValueError(f"policy {text!r}: {e}") from None


def _read_sections(kind: str, sections: list[str]) -> tuple[str, dict[str, float]]:
    """Parse the sections of a policy string, such as "m9" and "mstd0.5" of "rand-m9-mstd0.5".

    Returns:
        The operation set: NAME if there is a section "tNAME", else "". Then a dict from the key of
        each section to its number, such as {"m": 9.0, "mstd": 0.5}.
    """
    op_set, numbers = "", dict[str, float]()
    for section in sections:
        parts = re.fullmatch(r"([a-z]+)([0-9]+(?:\.[0-9]+)?)", section)
        key = parts[1] if parts else section
        if kind == "rand" and section.startswith("t"):
            sets = [f"t{name}" for name in (*_OP_SETS, "3a")]
            if section not in sets:
                raise ValueError(f"unknown section {section!r}{did_you_mean(section, sets)}")
            key, op_set = "t", section[1:]
        elif key not in _KEYS[kind]:
            raise ValueError(_explain_unknown(kind, section, key))
        elif parts is None:
            raise ValueError(f"the section {section!r} has no number: write one, such as {key}1")
        elif key in _WHOLE and "." in parts[2]:
            raise ValueError(f"the number of {section!r} is not whole: write one that is")
        if key in numbers:
            raise ValueError(f"the section {key!r} stands twice: leave one out")
        numbers[key] = float(parts[2]) if parts else 0.0
    for key in ("inc", "b"):
        if numbers.get(key, 1) != 1:
            raise ValueError(
                f"older versions of timm read any number after {key!r} as 1: write {key}1 or "
                "leave it out"
            )
    return op_set, numbers


def _explain_unknown(kind: str, section: str, key: str) -> str:
    number = section[len(key) :]
    near = nearest(key, _KEYS[kind])
    hint = f"; did you mean '{near}{number}'?" if near else did_you_mean(key, _KEYS[kind])
    return f"unknown section {section!r}{hint}"


def _auto(name: str, numbers: Mapping[str, float]) -> TimmPolicy:
    table = AUTO_POLICIES[name]
    ops = tuple(sorted({op for sub_policy in table for op, _, _ in sub_policy}))
    longest = max(map(len, table))
    return TimmPolicy("auto", ops, table, num_ops=longest, std=numbers.get("mstd", 0.0))


def _rand(numbers: Mapping[str, float], op_set: str) -> TimmPolicy:
    ops, weights = RAND_INCREASING_OPS if "inc" in numbers else RAND_OPS, None
    if op_set == "3a":
        ops = _3A
    elif op_set:
        ops, weights = tuple(_OP_SETS[op_set]), tuple(_OP_SETS[op_set].values())
    if "w" in numbers:
        weights = _old_weights(numbers["w"], op_set)
    num_ops, probability = _count("n", numbers, 2), numbers.get("p", 0.5)
    if probability > 1.0:
        raise ValueError(f"p is {probability:g}: write a probability, 0 to 1")
    drawable = sum(weight > 0 for weight in weights or ())
    if weights is not None and num_ops > drawable:
        raise ValueError(
            f"n is {num_ops}, but {drawable} weighted operations are drawn without "
            f"replacement: write n{drawable} at most"
        )
    std, magnitude = numbers.get("mstd", 0.0), numbers.get("m", MAX_LEVEL)
    std = UNIFORM if std > 100.0 else std
    largest = numbers.get("mmax", 0.0) or MAX_LEVEL  # timm takes mmax0 for the default
    return TimmPolicy("rand", ops, (), weights, num_ops, probability, magnitude, std, largest)


def _old_weights(number: float, op_set: str) -> tuple[float, ...]:
    if op_set:
        raise ValueError(f"'w' is {number:g} beside {f't{op_set}'!r}: leave one out")
    if number != 0:
        raise ValueError(f"timm has no weights {number:g}: write w0 or tweights")
    return tuple(_W0[name] for name in RAND_OPS)


def _augmix(numbers: Mapping[str, float]) -> TimmPolicy:
    alpha = numbers.get("a", 1.0)
    if not 0.05 <= alpha <= 100.0:
        raise ValueError(f"a is {alpha:g}: write a number from 0.05 to 100")
    depth = _count("d", numbers, 0) if "d" in numbers else 0
    return TimmPolicy(
        "augmix",
        MIX_OPS,
        magnitude=numbers.get("m", 3.0),
        std=numbers.get("mstd", UNIFORM),
        mixture=ChainMixture(width=_count("w", numbers, 3), depth=depth, alpha=alpha),
    )


def _count(key: str, numbers: Mapping[str, float], default: int) -> int:
    count = int(numbers.get(key, default))
    if not 1 <= count <= _MAX_COUNT:
        raise ValueError(f"{key} is {count}: write a number from 1 to {_MAX_COUNT}")
    return count
