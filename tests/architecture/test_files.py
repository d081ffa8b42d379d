"""Small files with telling names and docstrings, no path of one machine, and the papers' maps."""

import ast
import importlib
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for name in ("fl_app", "strategies") for path in (ROOT / name).rglob("*.py"))
MOST_LINES = 350
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "base", "misc"}
# A folder at the root of one machine; "x.org/home/" and "shared/work/" are something else.
MACHINE_PATH = re.compile(r"(?<![\w.~)}])/(?:" + "|".join(("work", "tmp", "home")) + r")/")


def list_project_files() -> list[Path]:
    """List the files that git tracks or would track; outside a checkout, the sources."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return SOURCES
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def find_undocumented(source: str) -> list[str]:
    """Name the public functions, classes and methods without a docstring.

    A method inherits its docstring from a base class of the same file.
    """
    function = (ast.FunctionDef, ast.AsyncFunctionDef)
    missing = []
    documented: dict[str, set[str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            inherited = {
                name
                for base in node.bases
                if isinstance(base, ast.Name)
                for name in documented.get(base.id, ())
            }
            methods = [each for each in node.body if isinstance(each, function)]
            documented[node.name] = inherited | {
                each.name for each in methods if ast.get_docstring(each)
            }
            if not node.name.startswith("_"):
                missing += [] if ast.get_docstring(node) else [node.name]
                missing += [
                    f"{node.name}.{each.name}"
                    for each in methods
                    if not each.name.startswith("_") and each.name not in documented[node.name]
                ]
        elif isinstance(node, function) and not node.name.startswith("_"):
            missing += [] if ast.get_docstring(node) else [node.name]
    return missing


def list_comments(source: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def names_tag(comments: str, tag: str) -> bool:
    """Tell whether a comment carries a tag; "step 1" is not in "step 12"."""
    return re.search(re.escape(tag) + r"(?!\w)", comments) is not None


def test_no_source_file_is_long():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert lengths
    assert {str(path): n for path, n in lengths.items() if n > MOST_LINES} == {}


def test_no_module_has_a_name_that_says_nothing():
    parts = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert parts & VAGUE_NAMES == set()


def test_everything_public_in_strategies_has_a_docstring():
    missing = {
        str(path.relative_to(ROOT)): names
        for path in SOURCES
        if path.is_relative_to(ROOT / "strategies")
        and (names := find_undocumented(path.read_text(encoding="utf-8")))
    }
    assert missing == {}


def test_a_missing_docstring_is_found():
    source = 'class A:\n    "Say."\n    def b(self): ...\n    def _c(self): ...\ndef d(): ...\n'
    assert find_undocumented(source) == ["A.b", "d"]
    heirs = 'class A:\n    "Say."\n    def b(self):\n        "Say."\nclass C(A):\n    "Say."\n'
    assert find_undocumented(heirs + "    def b(self): ...\n    def d(self): ...\n") == ["C.d"]
    assert find_undocumented('async def e():\n    "Say."\n') == []


def test_no_file_names_a_folder_of_one_machine():
    found = []
    for path in list_project_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}, line {number}"
            for number, line in enumerate(lines, start=1)
            if MACHINE_PATH.search(line)
        ]
    assert found == []


@pytest.mark.parametrize("folder", ["work", "tmp", "home"])
def test_a_folder_of_one_machine_is_found(folder):
    assert MACHINE_PATH.search(f'open("/{folder}/x")')
    assert MACHINE_PATH.search(f"cd /{folder}/x")
    assert MACHINE_PATH.search(f"file:///{folder}/x")
    assert not MACHINE_PATH.search(f"shared/{folder}/x, https://example.org/{folder}/x")
    assert not MACHINE_PATH.search(f"~/{folder}/x, ./{folder}/x, ${{ROOT}}/{folder}/x")


METHODS = sorted(
    path.parent.name
    for path in (ROOT / "strategies").glob("*/__init__.py")
    if (path.parent / "algorithm.py").is_file()
)


@pytest.mark.skipif(not METHODS, reason="no method has an algorithm.py yet")
@pytest.mark.parametrize("method", METHODS)
def test_the_paper_s_steps_are_mapped_to_functions_and_marked_there(method):
    paper_map = importlib.import_module(f"strategies.{method}").PAPER_MAP
    assert paper_map
    for tag, target in paper_map.items():
        module, _, name = target.rpartition(".")
        assert module.startswith(f"strategies.{method}."), target
        assert callable(getattr(importlib.import_module(module), name)), target
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert names_tag(list_comments(source), tag), f"no comment in {module} says {tag!r}"


def test_a_tag_counts_only_where_a_comment_has_the_whole_of_it():
    comments = list_comments('x = "Alg. 1, step 3"  # Alg. 1, step 12: clip.\n')
    assert names_tag(comments, "Alg. 1, step 12")
    assert not names_tag(comments, "Alg. 1, step 1")
    assert not names_tag(comments, "Alg. 1, step 3")
