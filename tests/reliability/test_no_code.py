"""Nothing that is read is ever run: the package has no way from data to code, but for the ones named here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cockpit

PACKAGE = Path(cockpit.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
SCRIPTS = sorted((PACKAGE / "dashboard" / "static").glob("*.js"))

MODULES = frozenset(
    {
        "cloudpickle",
        "code",
        "codeop",
        "commands",
        "cPickle",
        "dill",
        "imp",
        "jinja2",
        "joblib",
        "jsonpickle",
        "marshal",
        "mako",
        "multiprocessing",
        "pickle",
        "plistlib",
        "pty",
        "runpy",
        "shelve",
        "subprocess",
        "xmlrpc",
        "yaml",
    }
)
"""Their imports: they run what they read, or start processes."""

NAMES = frozenset({"eval", "exec", "compile", "__import__", "breakpoint", "input"})
"""Built-in functions that are not called."""

METHODS = frozenset(
    {
        "all_gather_object",
        "broadcast_object_list",
        "enable_load_extension",
        "gather_object",
        "load_extension",
        "load_module",
        "load_source",
        "popen",
        "read_pickle",
        "scatter_object_list",
        "spec_from_file_location",
        "startfile",
        "system",
        "to_pickle",
        "unsafe_load",
    }
)
"""Functions and methods of whatever module that are not called, nor any ``os.exec...`` or ``os.spawn...``."""

BY_NAME = frozenset({"find_spec", "import_module", "entry_points"})
"""Those that import: with a name that stands in the source, or not at all."""

KEYWORDS = {
    ("torch", "load"): ("weights_only", True),
    ("np", "load"): ("allow_pickle", False),
    ("numpy", "load"): ("allow_pickle", False),
}
"""Those that unpickle unless told not to, where it must be said."""

ALLOWED = {
    # The keys of a table in the same file, for names that are loaded when they are first asked for.
    ("__init__.py", "import_module"): 2,
    # The names of a constant in the same file: packages that the page needs.
    ("dashboard/__init__.py", "find_spec"): 1,
    # Torch pickles what the processes of one training tell each other: they run the same program, and
    # none of it comes from a file.
    ("engine/distributed.py", "all_gather_object"): 2,
    ("integrations/transformers.py", "broadcast_object_list"): 1,
}
"""How often a file does what is forbidden otherwise, each with its reason."""


def name_of(called: ast.expr) -> tuple[str, str]:
    """Return the last two parts of the name of what is called."""
    if isinstance(called, ast.Attribute):
        value = called.value
        before = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
        return before, called.attr
    return "", called.id if isinstance(called, ast.Name) else ""


def ways_out(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield what runs data, and in which line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = {alias.name.partition(".")[0] for alias in node.names}
            yield from ((f"import {root}", node.lineno) for root in roots & MODULES)
        elif isinstance(node, ast.ImportFrom):
            root = (node.module or "").partition(".")[0]
            if root in MODULES and not node.level:
                yield f"import {root}", node.lineno
        elif isinstance(node, ast.Name) and node.id in {"eval", "exec", "__import__"}:
            yield node.id, node.lineno
        if not isinstance(node, ast.Call):
            continue
        before, name = name_of(node.func)
        keywords = {one.arg: one.value for one in node.keywords}
        literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
        if (
            (isinstance(node.func, ast.Name) and name in NAMES)
            or name in METHODS
            or (before == "os" and re.match("exec|spawn|posix_spawn", name))
            or (name in BY_NAME and not literal)
        ):
            yield name, node.lineno
        elif (before, name) in KEYWORDS:
            keyword, needed = KEYWORDS[before, name]
            given = keywords.get(keyword)
            if not (isinstance(given, ast.Constant) and given.value is needed):
                yield f"{before}.{name} without {keyword}={needed}", node.lineno
        elif "shell" in keywords:
            yield "shell=", node.lineno


@pytest.mark.parametrize("name", FILES)
def test_no_way_from_data_to_code(name: str) -> None:
    found: dict[str, list[int]] = {}
    for what, line in ways_out(ast.parse(FILES[name].read_text())):
        found.setdefault(what, []).append(line)
    own = {what: count for (file, what), count in ALLOWED.items() if file == name}
    assert {what: len(lines) for what, lines in found.items()} == own, found


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml",
        "import subprocess as s",
        "eval(text)",
        "run = eval",
        "exec(text)",
        "compile(text, '', 'exec')",
        "__import__(name)",
        "importlib.import_module(name)",
        "import_module(f'cockpit.{name}')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=safe)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "pd.read_pickle(path)",
        "os.system(text)",
        "os.execv(path, [])",
        "os.popen(text)",
        "connection.enable_load_extension(True)",
        "torch.distributed.all_gather_object(found, mine)",
        "run(text, shell=True)",
    ],
)
def test_each_of_them_would_be_found(code: str) -> None:
    assert list(ways_out(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "re.compile(text)",
        "torch.compile(model)",
        "importlib.import_module('cockpit.plotter')",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "json.loads(text)",
    ],
)
def test_and_what_is_harmless_would_not(code: str) -> None:
    assert not list(ways_out(ast.parse(code)))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_page_runs_no_text_and_writes_no_markup(path: Path) -> None:
    for pattern in (
        r"\beval\b",
        r"\bFunction\s*\(",
        r"\b(inner|outer)HTML\b",
        r"\binsertAdjacentHTML\b",
        r"\bdocument\s*\.\s*write",
        r"\bset(Timeout|Interval)\s*\(\s*[\"'`]",
        r"\bjavascript:",
        r"\bimport\s*\(",
    ):
        assert not re.search(pattern, path.read_text()), pattern
