"""What a visitor sees and what every file of the project has to keep."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = ("dgpp", "actors", "kernels_numba")
MODULES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
SOURCES = [
    *MODULES,
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file()),
]

# The single-letter classes keep this file free of what it forbids.
PROMISES = re.compile(r"\b(T[O]DO|FIX[M]E|XX[X])\b")
FOREIGN_PATHS = re.compile(r"/(wo[r]k|fa[r]m)/|[.]lib[r]ary/")
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


@dataclass(frozen=True)
class Facts:
    """What the rules ask of one module."""

    says: bool
    long: tuple[str, ...]
    forbidden: tuple[str, ...]


@cache
def facts(path: Path) -> Facts:
    """Read once, the tree let go: hundreds of trees are what a collector would walk all day."""
    tree = ast.parse(path.read_text())
    long, found = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            long += [node.name] if (node.end_lineno or 0) - node.lineno >= 60 else []
        else:
            found += forbidden(node)
    return Facts(not tree.body or bool(ast.get_docstring(tree)), tuple(long), tuple(found))


TO_BE_WRITTEN = ("toy_lm", "NAME")
"""In the names of files that a reader of a page is to write."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("script", ["scripts/demo.sh", "scripts/test.sh", ".ci/run"])
def test_commands_are_there_and_parse(script):
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_readme_names_its_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert "./scripts/demo.sh" in readme
    assert "./scripts/test.sh" in readme


def test_ci_runs_both_commands():
    script = (ROOT / ".ci" / "run").read_text()
    assert "./scripts/test.sh" in script
    assert "./scripts/demo.sh --once" in script


@pytest.mark.parametrize("script", ["test.sh", "roce-vm"])
def test_options_that_do_not_exist_are_refused(script):
    command = [str(ROOT / "scripts" / script), "--wrong"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "usage" in done.stderr


def test_gpu_tests_do_not_pass_where_none_could_run(tmp_path):
    """A machine without what they need, then one without a GPU."""
    run = [str(ROOT / "scripts" / "test.sh"), "--gpu"]

    def said(**more: str) -> str:
        environ = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **more}
        done = subprocess.run(run, capture_output=True, text=True, check=False, env=environ)
        assert done.returncode == 1
        assert "passed" not in done.stdout
        return done.stderr

    if importlib.util.find_spec("cupy") is None:
        assert f"{sys.executable} has no cupy: install 'dgpp[cuda,dev]'" in said()
    (tmp_path / "cupy.py").touch()
    assert "no GPU can be used" in said(PYTHONPATH=str(tmp_path), CUDA_VISIBLE_DEVICES="")


def test_demo_refuses_a_wrong_option():
    command = [str(ROOT / "scripts" / "demo.sh"), "--wrong"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "usage" in done.stderr


def test_changelog_says_something():
    assert re.search(r"^- \S", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_files_exist(page):
    known = r"(?:dgpp|actors|kernels_numba|scripts|tests|docs|deploy)/[\w./-]+\.\w+"
    for path in re.findall(rf"(?<![\w/.-]){known}", page.read_text()):
        written = any(word in path for word in TO_BE_WRITTEN)
        assert written or (ROOT / path).exists(), path


def test_structure_lists_every_module():
    script = runpy.run_path(str(ROOT / "scripts" / "list_modules.py"))
    page = (ROOT / "docs" / "structure.md").read_text()
    assert page == script["rewritten"](page), "run scripts/list_modules.py"


def test_every_module_says_what_it_is():
    assert [name(path) for path in MODULES if not facts(path).says] == []


def test_package_root_is_empty():
    assert (ROOT / "dgpp" / "__init__.py").read_text().strip() == ""


def test_no_module_is_long():
    long = [name(path) for path in SOURCES if len(path.read_text().splitlines()) > 500]
    assert long == []


def test_no_function_is_long():
    assert {name(p): facts(p).long for p in SOURCES if p.suffix == ".py" and facts(p).long} == {}


def test_no_promises_and_no_foreign_paths():
    found = [
        f"{name(path)}: {match.group()}"
        for path in [*SOURCES, *PAGES]
        for pattern in (PROMISES, FOREIGN_PATHS)
        for match in [pattern.search(path.read_text())]
        if match
    ]
    assert found == []


def forbidden(node: ast.AST) -> list[str]:
    """Imports and calls that run data as code, and handlers that catch everything."""
    match node:
        case ast.Import():
            names = [alias.name for alias in node.names]
        case ast.ImportFrom():
            names = [node.module or ""]
        case ast.Call(func=ast.Name(id=called)):
            return [called] if called in FORBIDDEN_CALLS else []
        case ast.ExceptHandler(type=None):
            return ["bare except"]
        case _:
            return []
    return [module for module in names if module.split(".")[0] in FORBIDDEN_IMPORTS]


@pytest.mark.parametrize(
    "line",
    [
        "import os, pickle",
        "from marshal import loads",
        "eval(data)",
        "try:\n    pass\nexcept:\n    pass",
    ],
)
def test_what_is_forbidden_is_seen(line):
    assert [what for node in ast.walk(ast.parse(line)) for what in forbidden(node)]


def test_nothing_runs_data_as_code():
    found = {name(p): facts(p).forbidden for p in SOURCES if p.suffix == ".py"}
    assert {path: what for path, what in found.items() if what} == {}


def test_nothing_that_is_kept_points_elsewhere():
    """A link in the repository, an environment's above all, is one machine's own."""
    listed = subprocess.run(
        ["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a checkout")
    assert not [line for line in listed.stdout.splitlines() if line.startswith("120000")]


def test_tests_that_run_together_have_names_of_their_own():
    """pytest imports test modules by their bare names; `--long` runs all tiers as one."""
    tiers = runpy.run_path(str(ROOT / "scripts" / "run_tiers.py"))
    folders = {tiers["folder_of"](tier) for tier in tiers["BUDGET_S"]}
    files = sorted({path for one in folders for path in (ROOT / one).rglob("test_*.py")})
    names = [path.name for path in files]
    assert {name for name in names if names.count(name) > 1} == set()
    assert len(names) > 100
