"""Hooks of the documentation's generator: pages from outside of ``docs/``, and formulas without scripts.

The pages link to files of the repository as they would on a code host, ``../examples/README.md``. What is
linked to and lies outside of ``docs/`` becomes a page of the site, under ``repository/``. Formulas between
dollars become MathML, which browsers draw by themselves.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUTSIDE = "repository"
"""Folder of the site for what is linked to outside of ``docs/``."""

LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
BAR = re.compile(r"<mo>(&#x02016;|&#x0007C;)</mo>")
"""Bars of norms: as operators they would grow with the line, and stand too low below an exponent."""

MATH = r'<span class="arithmatex">\\(\1\\)</span>'
"""How the extension for formulas between dollars leaves them."""

LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}
"""Files that become pages showing their text, and how they are highlighted."""


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of ``docs/`` that a page links to, and those that these link to."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        for target in linked(waiting.pop()):
            if target in seen or target.is_relative_to(DOCS) or not target.is_file():
                continue  # a link that leads nowhere is left for the generator to complain of
            seen.add(target)
            files.append(generated(target, config))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    here, place = source(page.file.src_uri), Path(page.file.src_uri).parent

    def rewritten(match: re.Match[str]) -> str:
        target = resolved(here, match[1])
        if target is None or not target.is_file():
            return match[1]
        return os.path.relpath(site_path(target), place)

    return LINK.sub(rewritten, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, and mend what docstrings write otherwise than pages."""
    content = re.sub(r"<p>::</p>|(?<=:):(?=</p>)", "", content)  # docstrings announce code by ::
    content = re.sub(r":math:<code>(.*?)</code>", MATH, content, flags=re.S)

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        drawn = convert(html.unescape(match[2]).strip(), display=display)
        return BAR.sub(r'<mi mathvariant="normal">\1</mi>', drawn)

    pattern = r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>'
    return re.sub(pattern, formula, content, flags=re.S)


def generated(path: Path, config: Any) -> File:
    """Return the file of the site for one of the repository; what the menu has not, it may do without."""
    uri = site_path(path)
    listed = f"'{uri}'" in str(config["nav"])
    level = InclusionLevel.INCLUDED if listed else InclusionLevel.NOT_IN_NAV
    if path.suffix not in LANGUAGES:
        return File.generated(config, uri, abs_src_path=str(path), inclusion=level)
    text = path.read_text(encoding="utf-8")
    name, language = path.relative_to(ROOT).as_posix(), LANGUAGES[path.suffix]
    page = f"# {path.name}\n\n`{name}`\n\n````{language}\n{text}````\n"
    return File.generated(config, uri, content=page, inclusion=level)


def site_path(path: Path) -> str:
    """Return where a file of the repository stands in the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    ending = ".md" if path.suffix in LANGUAGES else ""
    return f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}{ending}"


def source(uri: str) -> Path:
    """Return the file of the repository that a page was made of."""
    if not uri.startswith(f"{OUTSIDE}/"):
        return DOCS / uri
    path = ROOT / uri.removeprefix(f"{OUTSIDE}/")
    return path if path.exists() else path.with_suffix("")


def linked(page: Path) -> Iterator[Path]:
    """Yield the files that a page links to."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = resolved(page, target)
        if path is not None:
            yield path


def resolved(page: Path, target: str) -> Path | None:
    """Return the file that a link of a page leads to; None for addresses elsewhere."""
    if "://" in target or target.startswith("mailto:"):
        return None
    return Path(os.path.normpath(page.parent / target))
