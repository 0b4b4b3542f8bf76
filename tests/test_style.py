"""The rules that every module keeps: STYLE's and HOUSE's. `scripts/house.py` measures them."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parent.parent
HOUSE = runpy.run_path(str(ROOT / "scripts" / "house.py"))

MAX_MODULE_LINES = 568
"""Of code: comments and docstrings must not be what makes a module too long."""
MAX_FUNCTION_LINES = 60


@pytest.fixture(scope="module")
def modules():
    """Every source file, parsed once. They are dropped with this module, because a million nodes slow every garbage collection."""
    gc.disable()  # Nothing of what parsing makes is garbage, and looking for some took a third of the time.
    try:
        return HOUSE["modules_of"](ROOT)
    finally:
        gc.enable()


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if not name.startswith("__")])
def test_every_public_name_is_documented(name, modules):
    value = getattr(holdfast, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.cleandoc(value.__doc__ or "")
    else:
        assert name in _documented_assignments(modules), "an alias or a constant has its docstring on the line below it"


def _documented_assignments(modules) -> set[str]:
    named = set()
    for module in modules:
        for node, below in pairwise(module.tree.body):
            is_described = (
                isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            )
            if is_described and isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                named |= {target.id for target in targets if isinstance(target, ast.Name)}
    return named


def _place(module, node: ast.AST) -> str:
    return f"{module.name}:{node.lineno}"


def _below_the_command(modules) -> list:
    return [module for module in modules if module.room != "cli"]


def _functions(module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in module.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_STYLE_a_module_says_what_it_is_for(modules):
    assert [module.name for module in modules if not ast.get_docstring(module.tree)] == []


def test_STYLE_a_module_is_short(modules):
    assert {module.name: module.code for module in modules if module.code > MAX_MODULE_LINES} == {}


def test_HOUSE_the_rules_that_scripts_house_measures_hold(modules):
    assert HOUSE["largest_knot"](HOUSE["import_graph"](modules)) == []
    assert HOUSE["untyped_seams"](modules) == []
    assert HOUSE["writers_of_operation"](modules) == ["holdfast.runtime.operation.operation"]
    assert HOUSE["stream_loops"](modules) == ["holdfast.runtime.streams.flow"]
    assert HOUSE["gerunds"](modules) == []
    assert HOUSE["mistakes_in_names"](modules) == []
    assert HOUSE["undocumented"](modules) == []
    comments, code = sum(module.comments for module in modules), sum(module.code for module in modules)
    assert comments / code >= 0.04


def test_STYLE_a_function_is_short(modules):
    long = [
        _place(module, function)
        for module in modules
        for function in _functions(module)
        if function.end_lineno - function.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_STYLE_our_own_package_is_imported_at_the_top(modules):
    """Only the command imports its verbs when they run, so that --help stays instant."""

    def is_ours(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return bool(node.level) or (node.module or "").partition(".")[0] == "holdfast"
        return isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "holdfast" for alias in node.names)

    hidden = [
        _place(module, node)
        for module in _below_the_command(modules)
        for function in _functions(module)
        for node in ast.walk(function)
        if is_ours(node)
    ]
    assert hidden == []


def test_STYLE_only_the_command_prints(modules):
    def prints(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id == "print"
        return (
            isinstance(node, ast.Attribute)
            and node.attr in ("stdout", "stderr")
            and isinstance(node.value, ast.Name)
            and node.value.id == "sys"
        )

    printing = [_place(module, node) for module in _below_the_command(modules) for node in module.nodes if prints(node)]
    assert printing == []


def test_STYLE_what_a_module_says_it_offers_is_there(modules):
    untrue = []
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                offering = importlib.import_module(module.name)
                untrue += [
                    f"{module.name}.{name}" for name in ast.literal_eval(node.value) if not hasattr(offering, name)
                ]
    assert untrue == []
