"""JSON as browsers read it: without NaN and infinities, which it has no numbers for."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response

__all__ = ["Json", "encode", "plain"]


def plain(value: Any) -> Any:
    """Return a value with the names of NaN and infinities in their place, ``"nan"`` or ``"inf"``."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def encode(value: Any) -> bytes:
    """Return strict JSON."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


class Json(Response):
    """An answer in strict JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as bytes."""
        return encode(content)
