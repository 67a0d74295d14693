"""What a server serves, as a client compares it after a reconnect."""

from __future__ import annotations

from typing import Any

from gpupipe.errors import short
from gpupipe.protocol.messages import SessionOpened

_COMPARED = {
    "data": ("data", "fingerprint"),
    "pipeline": ("pipeline", "fingerprint"),
    "steps left to clients": ("pipeline", "tail"),
    "batch": ("batch", "fingerprint"),
    "mode": ("mode",),
}
"""Values of the description by their names in messages, besides those of `loader`."""


def find_differences(before: SessionOpened, now: SessionOpened) -> str:
    """Return how a server differs from the one that answered before, or "".

    It is what servers that are merged must have in common, and what the batches that are still to
    come depend on: rank, mode, dtype and the steps that are left to clients.
    """
    old, new = _identify(before), _identify(now)
    return "; ".join(
        f"{key}: {short(str(old.get(key)))} before, {short(str(new.get(key)))} now"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )


def _identify(opened: SessionOpened) -> dict[str, Any]:
    # a subset is a file of the server; the settings of the selection have its hash
    loader = {k: v for k, v in _get(opened, ("loader",), {}).items() if k != "subset"}
    return {
        **{key: _get(opened, path) for key, path in _COMPARED.items()},
        **loader,
        **_get(opened, ("selection", "settings"), {}),
        "rank": opened.rank,
        "world_size": opened.world_size,
    }


def _get(opened: SessionOpened, path: tuple[str, ...], default: Any = None) -> Any:
    value: Any = opened.description
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return default if value is None else value
