"""Executes the notebooks in place, so that their outputs are those of the code as it is.

Run it from the root of the repository with ``make notebooks``, after a change to a notebook or to the
pictures. What differs from one execution to the next is left out, and the pictures are made small, so
that a file changes only where its outputs do.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent
SECONDS_PER_CELL = 300
COLORS = 256
"""Colours of a picture: enough for the eye, in a third of the bytes."""


def execute(path: Path) -> NotebookNode:
    """Return a notebook with the outputs of running it in an empty folder.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=SECONDS_PER_CELL,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
            coalesce_streams=True,
        ).execute()
    return notebook


def tidy(notebook: NotebookNode) -> None:
    """Remove times and versions, make the pictures small, and note of which code the outputs are."""
    notebook.metadata = {
        "executed": digest(notebook),
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = smaller(data["image/png"])


def digest(notebook: NotebookNode) -> str:
    """Return what tells the code of a notebook from any other."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()


def smaller(picture: str) -> str:
    """Return a PNG in base64 with few colours, which takes far fewer bytes."""
    image = Image.open(BytesIO(base64.b64decode(picture))).convert("RGB")
    file = BytesIO()
    image.quantize(COLORS, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        print(path.name, flush=True)
        try:
            notebook = execute(path)
        except Exception as error:
            sys.exit(f"{path.name} was left as it is: {error}")
        tidy(notebook)
        nbformat.write(notebook, path)
