"""A run as one picture in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.errors import InvalidArgument
from cockpit.replacing import writing_to

if TYPE_CHECKING:
    from cockpit.run import Run

__all__ = ["PICTURES", "draw"]

PICTURES = ("png", "pdf", "svg", "jpg")


def draw(run: Run, picture: Path, *, title: str | None = None, dark: bool = False) -> Path:
    """Draw all pictures of a run into one file, and return its path.

    Raises:
        InvalidArgument: The name does not end as that of a picture, or nothing can be written there.
    """
    from cockpit.plotter import CockpitPlotter

    ending = picture.suffix[1:].lower()
    if not ending:
        picture, ending = picture.with_name(f"{picture.name}.png"), "png"
    if ending not in PICTURES:
        raise InvalidArgument(
            f"cannot draw into {picture}: choose a name that ends in .{', .'.join(PICTURES)}."
        )
    with writing_to(picture):
        CockpitPlotter(style="dark" if dark else "light").plot(
            run,
            show_plot=False,
            save_plot=True,
            savedir=picture.parent,
            savename=picture.stem,
            savefig_kwargs={"format": picture.suffix[1:]},
            plot_title=title,
        )
    return picture
