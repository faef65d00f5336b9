"""The example of the documentation prints what stands there."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "any-model.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_shows(capsys):
    section = PAGE.partition("## What does it cover in my model?")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    (shown,) = re.findall(r"```text\n(.*?)```", section, flags=re.S)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, "any-model.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == shown
