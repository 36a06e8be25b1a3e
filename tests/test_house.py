"""The rules of the house: who may import whom, what stays pure, how large things grow. Read with `ast`, nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "paceline"
MODULES = sorted(SOURCE.rglob("*.py"))

LEAVES = ("errors", "pace", "hybrid", "settings", "messages", "ports", "config")
ORDER = (
    *(LEAVES, ("logic",), ("roles",), ("tensors",), ("transport",), ("trace",), ("engine",), ("plan",), ("dash",)),
    *(("session",), ("__init__",), ("options",), ("cli",), ("__main__",)),
)
# docs/decisions has the reasons.
APART = {"transport": {"logic", "roles", "tensors"}, "tensors": {"logic", "roles"}}
ALLOWED = {("tensors", "paceline.logic.partition")}

PURE = ("errors", "pace", "hybrid", "settings", "messages", "ports", "logic", "roles")
IMPURE_IMPORTS = {
    *("torch", "numpy", "time", "datetime", "random", "secrets", "os", "io", "sys", "socket", "select", "selectors", "threading"),
    *("subprocess", "signal", "asyncio", "logging", "pathlib", "mmap", "tempfile", "shutil"),
}
NETWORK_AND_CLOCK = {"socket", "select", "selectors", "threading", "subprocess", "signal", "asyncio", "time", "datetime", "os"}
IMPURE_CALLS = {"open", "print", "input"}

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "multiprocessing"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}

MOST_FUNCTION_LINES = 60
MOST_MODULE_LINES = 320
MOST_POSITIONAL = 6  # five and self
LONGER = {"paceline.messages": 790}  # a table of values


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The line of DESIGN's list that a module belongs to: `paceline.logic.gate` to logic."""
    return module.split(".")[1] if "." in module else "__init__"


def level_of(part: str) -> int:
    for level, parts in enumerate(ORDER):
        if part in parts:
            return level
    raise AssertionError(f"{part} has no place in the order of packages")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, with the line; `from a import b` gives a.b when that is a module of ours, else a."""
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])]) if node.level else node.module or ""
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                is_module = (SOURCE.parent / Path(*whole.split("."))).is_dir() or (SOURCE.parent / Path(*whole.split("."))).with_suffix(
                    ".py"
                ).is_file()
                yield (whole if is_module else base), node.lineno


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def called(node: ast.Call) -> str:
    """The dotted name that is called, as far as it is one."""
    return ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""


@pytest.fixture(params=MODULES, ids=name_of)
def module(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_a_module_imports_only_from_lines_above_its_own(module: Path) -> None:
    mine = part_of(name_of(module))
    for target, line in imports_of(module):
        if target.split(".")[0] != "paceline" or target == "paceline":
            continue
        theirs = part_of(target)
        assert theirs == mine or level_of(theirs) < level_of(mine) or (mine in LEAVES and theirs in LEAVES), (
            f"{module}:{line}: {mine} may not import {target}"
        )
        if (mine, target) not in ALLOWED:
            assert theirs not in APART.get(mine, set()), f"{module}:{line}: {mine} may not import {target}"


def test_rules_and_roles_touch_no_clock_file_or_chance(module: Path) -> None:
    if part_of(name_of(module)) not in PURE:
        return
    for target, line in imports_of(module):
        assert target.split(".")[0] not in IMPURE_IMPORTS, f"{module}:{line}: imports {target}"
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call):
            assert called(node) not in IMPURE_CALLS, f"{module}:{node.lineno}: calls {called(node)}"


def test_tensors_know_no_network_and_no_clock(module: Path) -> None:
    if part_of(name_of(module)) != "tensors":
        return
    for target, line in imports_of(module):
        assert target.split(".")[0] not in NETWORK_AND_CLOCK, f"{module}:{line}: imports {target}"


def test_the_environment_and_the_clock_are_arguments_of_config() -> None:
    imported = {target.split(".")[0] for target, _ in imports_of(SOURCE / "config.py")}
    assert not imported & (IMPURE_IMPORTS - {"pathlib"})


def test_nothing_decodes_code_or_forks_a_pool(module: Path) -> None:
    for target, line in imports_of(module):
        assert target.split(".")[0] not in FORBIDDEN_IMPORTS, f"{module}:{line}: imports {target}"
        assert target not in ("torch.multiprocessing", "concurrent.futures.process"), f"{module}:{line}: imports {target}"
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call):
            assert called(node) not in FORBIDDEN_CALLS, f"{module}:{node.lineno}: calls {called(node)}"
            assert not called(node).endswith("torch.load"), f"{module}:{node.lineno}: calls torch.load"
        if isinstance(node, (ast.Name, ast.Attribute)):
            word = node.id if isinstance(node, ast.Name) else node.attr
            assert word != "ProcessPoolExecutor", f"{module}:{node.lineno}: {word}"


def test_the_coordinator_and_the_command_start_without_torch() -> None:
    """Nothing that they import at module level, however far down, is torch."""
    seen: set[str] = set()
    waiting = ["paceline.cli", "paceline.engine.local.coordinator_main"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = SOURCE.parent / Path(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file():
            continue
        inside = {id(child) for function in functions_of(file) for child in ast.walk(function)}
        for node in ast.walk(tree_of(file)):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in inside:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not any(each.split(".")[0] == "torch" for each in names), f"{file}:{node.lineno}: imports torch"
        waiting += [target for target, line in imports_of(file) if target.startswith("paceline.") and is_top_level(file, line)]


def is_top_level(path: Path, line: int) -> bool:
    return not any(function.lineno <= line <= (function.end_lineno or 0) for function in functions_of(path))


def test_a_name_says_what_it_holds(module: Path) -> None:
    assert not set(name_of(module).split(".")) & FORBIDDEN_NAMES


def test_a_module_is_one_noun(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= LONGER.get(name_of(module), MOST_MODULE_LINES), f"{module} has {lines} lines"
    if text.strip():
        docstring = ast.get_docstring(tree_of(module))
        assert docstring, f"{module} has no docstring"
        assert len(docstring.splitlines()) <= 12, f"{module}: its docstring is long"


def test_a_function_is_short_annotated_and_explained(module: Path) -> None:
    tree = tree_of(module)
    for function in functions_of(module):
        where = f"{module}:{function.lineno}: {function.name}"
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= MOST_FUNCTION_LINES, f"{where} has {lines} lines"
        positional = [*function.args.posonlyargs, *function.args.args]
        assert len(positional) <= MOST_POSITIONAL, f"{where} takes {len(positional)} positional arguments"
        for argument in [*positional, *function.args.kwonlyargs]:
            assert argument.annotation or argument.arg in ("self", "cls"), f"{where}: {argument.arg} has no annotation"
        assert function.returns or function.name == "__init__", f"{where} says not what it returns"
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        for node in owner.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node) or is_overload(node), f"{module}:{node.lineno}: {node.name} has no docstring"


def is_overload(node: ast.AST) -> bool:
    return any(
        "overload" in ast.unparse(decorator) or "setter" in ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])
    )


def test_no_exception_is_swallowed(module: Path) -> None:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{module}:{node.lineno}: a bare except"


def test_the_rules_can_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted module of each kind is caught, so the tests above do read what they claim to."""
    planted = tmp_path / "paceline"
    (planted / "logic").mkdir(parents=True)
    wrong = planted / "logic" / "wrong.py"
    monkeypatch.setitem(globals(), "SOURCE", planted)
    for text, rule in (
        ("from paceline.roles import worker", test_a_module_imports_only_from_lines_above_its_own),
        ("from ..roles import worker", test_a_module_imports_only_from_lines_above_its_own),
        ("def f():\n    import time", test_rules_and_roles_touch_no_clock_file_or_chance),
        ("open('x')", test_rules_and_roles_touch_no_clock_file_or_chance),
        ("import pickle", test_nothing_decodes_code_or_forks_a_pool),
        ("from multiprocessing import Queue", test_nothing_decodes_code_or_forks_a_pool),
        ("eval('1')", test_nothing_decodes_code_or_forks_a_pool),
        ("import torch\ntorch.load('x')", test_nothing_decodes_code_or_forks_a_pool),
        ("x = 1", test_a_module_is_one_noun),
        ('"""A."""\n' * 400, test_a_module_is_one_noun),
        ('"""A."""\ndef f(x): ...', test_a_function_is_short_annotated_and_explained),
        ('"""A."""\ndef f() -> None:\n' + "    f()\n" * 61, test_a_function_is_short_annotated_and_explained),
        ("try:\n    pass\nexcept:\n    pass", test_no_exception_is_swallowed),
    ):
        wrong.write_text(text)
        with pytest.raises(AssertionError):
            rule(wrong)


PATTERNS = ("*.md", "docs/**/*.md", "*/**/*.py", "*.toml", "Makefile", "requirements/*.txt")
TEXTS = sorted(
    {path for pattern in PATTERNS for path in ROOT.glob(pattern) if not path.relative_to(ROOT).parts[0].startswith((".", "runs"))}
)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_says_nothing_of_where_and_how_it_was_written(path: Path) -> None:
    """No path of somebody's machine, no address of a package index, no ticket, no note to come back to."""
    private = re.compile(r"/(?:home|root|work|opt|Users)/[a-z]|find-links|index-url|(?<!pytorch )\bissues? #?\d|\b(?:TODO|FIXME|XXX)\b")
    found = private.search(path.read_text(encoding="utf-8")) if path != Path(__file__) else None
    assert found is None, f"{path} speaks of {found and found[0]}"
