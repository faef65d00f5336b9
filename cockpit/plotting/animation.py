"""An animation of one figure over the steps of a run, as a GIF."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.progress import track

from cockpit.errors import InvalidArgument

__all__ = ["FRAMES", "write_animation"]

FRAMES = 30
"""The most frames of an animation."""

WIDTH = 1280
"""Width of a frame in pixels."""

LONGEST = 655_350
"""A GIF keeps the time of a frame in two bytes, in hundredths of a second."""


def write_animation(
    draw: Callable[[int], Figure],
    steps: np.ndarray,
    path: Path,
    *,
    duration: int = 200,
    loop: int = 0,
) -> None:
    """Draw up to `FRAMES` of the steps, and write them as a GIF.

    Args:
        draw: Returns the figure of what was known at a step.
        steps: The steps, ascending, at least one.
        path: Where to; the file is replaced once the new one is complete.
        duration: Milliseconds for which a frame is shown.
        loop: How often the animation is played; 0 is for ever.

    Raises:
        InvalidArgument: `duration` or `loop` is out of range, or nothing can be written there.
    """
    if not 0 < duration <= LONGEST:
        raise InvalidArgument(
            f"duration is the time of a frame in milliseconds, at most {LONGEST}, got {duration!r}."
        )
    if not 0 <= loop <= 65_535:
        raise InvalidArgument(f"loop must be 0 (for ever) or a number of times, got {loop!r}.")
    places = np.unique(np.linspace(0, len(steps) - 1, FRAMES).round().astype(int))
    console = Console(stderr=True)
    shown = track(
        steps[places].tolist(), "Animation", console=console, disable=not console.is_terminal
    )
    frames = [_picture(draw(step)) for step in shown]
    # One palette for all of them, or else the colours would flicker.
    palette = frames[-1].quantize(colors=255, dither=Image.Dither.NONE)
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        first.save(
            temporary, "gif", save_all=True, append_images=others, duration=duration, loop=loop
        )
        temporary.replace(path)
    except OSError as error:
        raise InvalidArgument(
            f"no animation can be written at {path}: {error}. Copy the run to a folder that may be "
            "written to."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _picture(figure: Figure) -> Image.Image:
    """Return the figure in pixels."""
    figure.set_dpi(WIDTH / figure.get_figwidth())
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
