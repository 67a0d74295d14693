"""Resolves interpolations such as ${oc.env:HOME} in a Document, with OmegaConf."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import omegaconf
from omegaconf import OmegaConf

from gpupipe.errors import Problem, did_you_mean, nearest, shown
from gpupipe.schema.document import UNRESOLVED, Document, Loc

_SHELL_VARIABLE = re.compile(r"(?:^|/)\$([A-Za-z_]\w*)(?=/|$)")
"""Matches $HOME as a part of a path."""


def resolve(document: Document) -> tuple[Document, list[Problem]]:
    """Resolve every ${...}, which is OmegaConf's interpolation.

    Returns:
        The resolved document, and a problem for each ${...} that cannot be resolved. Its value
        is UNRESOLVED.
    """
    problems: list[Problem] = []
    config = OmegaConf.create(
        _map(document.data, (), lambda loc, text: text if _is_grammatical(text) else "???"),
        flags={"allow_objects": True},
    )

    def replaced(loc: Loc, text: str) -> Any:
        if variable := _SHELL_VARIABLE.search(text):
            rule = f"environment variables are ${{oc.env:{variable[1]}}}"
            problems.append(
                Problem(
                    document.where(loc),
                    f"{'.'.join(map(str, loc))} is {shown(text)}: {rule}, and no shell reads this",
                )
            )
            return UNRESOLVED
        try:
            value = config
            for key in loc:
                value = value[key]
            return (
                OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            )
        except omegaconf.errors.OmegaConfBaseException as e:
            problems.append(
                Problem(
                    document.where(loc),
                    f"{'.'.join(map(str, loc))}: {_describe_failure(text, e, document)}",
                )
            )
            return UNRESOLVED

    return Document(
        document.name, _map(document.data, (), replaced), document.keys, document.values
    ), problems


def _map(value: Any, loc: Loc, change: Callable[[Loc, str], Any]) -> Any:
    """Apply `change` to every text in `value` that OmegaConf or a shell would interpret."""
    if isinstance(value, dict):
        return {k: _map(v, (*loc, k), change) for k, v in value.items()}
    if isinstance(value, list):
        return [_map(v, (*loc, i), change) for i, v in enumerate(value)]
    is_interpreted = isinstance(value, str) and (
        "${" in value or value == "???" or _SHELL_VARIABLE.search(value)
    )
    return change(loc, value) if is_interpreted else value


def _is_grammatical(text: str) -> bool:
    try:
        OmegaConf.create([text])
    except omegaconf.errors.GrammarParseError:
        return False
    return True


def _describe_failure(text: str, error: Exception, document: Document) -> str:
    """Say why OmegaConf could not resolve a text, and what to write instead."""
    message = str(error).splitlines()[0]
    quoted = next(iter(re.findall(r"'([^']*)'", message)), "")
    if text == "???":
        return "??? stands for a value that must be given: write it here, or give it as an override"
    if isinstance(error, omegaconf.errors.MissingMandatoryValue):
        return (
            f"{shown(text)} cannot be read: write ${{key}} or ${{oc.env:NAME,default}}, and for "
            f"a plain '${{' write '\\${{'"
        )
    if message.startswith("KeyError") and "Environment variable" in message:
        return (
            f"the environment variable {quoted} is not set: set it, or write a default: "
            f"${{oc.env:{quoted},default}}"
        )
    if isinstance(error, omegaconf.errors.InterpolationKeyError):
        near = nearest(quoted, {".".join(map(str, k)) for k in document.keys})
        return f"{shown(text)}: there is no key '{quoted}'" + (
            f"; did you mean '{near}'?" if near else ""
        )
    if isinstance(error, omegaconf.errors.UnsupportedInterpolationType):
        return (
            f"{shown(text)}: unknown "
            f"resolver{did_you_mean(message.split()[-1], ('oc.env', 'oc.decode', 'oc.select'))}"
        )
    return f"{shown(text)} cannot be resolved: {message}"
