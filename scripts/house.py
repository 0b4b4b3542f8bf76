#!/usr/bin/env python3
"""Measure the house: how many modules and lines each room has, and how far it is from the rules of CONTRIBUTING.

    python scripts/house.py                 the tree of this clone
    python scripts/house.py OTHER_CLONE     another tree, such as a worktree of an earlier commit
    python scripts/house.py --list          also name what each figure counts
    python scripts/house.py --check         fail if class names are shared beyond those in scripts/house_names.txt

Only the standard library is used, and nothing of the tree is imported, so any commit can be measured with any interpreter.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Words that end in -ing and are nouns: modules may be called so.
NOUNS_IN_ING = {
    "logging",
    "testing",
    "string",
    "pricing",
    "routing",
    "streaming",
    "typing",
    "encoding",
    "pacing",
    "pairing",
    "warning",
}
# HOUSE.md's words for data that say nothing about the data.
AVOIDED_WORDS = re.compile(r"\b(told|said|asked|ditto)\b", re.IGNORECASE)
# Where a stream's failure after its first item is turned into an error: who does this has a loop of its own.
CUTS = {"StreamCutError", "cut_off"}
# Packages whose own page is what users import; the modules beside `holdfast/__init__.py` are such pages too.
PUBLIC_PACKAGES = {
    "holdfast",
    "holdfast.actors",
    "holdfast.classify",
    "holdfast.compat.tenacity",
    "holdfast.config",
    "holdfast.events",
    "holdfast.extensions",
    "holdfast.faults",
    "holdfast.manager",
    "holdfast.policies",
    "holdfast.providers",
    "holdfast.sessions",
    "holdfast.sinks",
    "holdfast.stores",
    "holdfast.testing",
    "holdfast.views",
}
OPERATION_NAMES = {"op", "_op", "operation", "flow"}
MOST_SHARED_NAMES = 59
"""Names that several classes may have, in all. It only falls: the aim is 30."""


class Module:
    """One source file, parsed once."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path
        parts = path.relative_to(root.parent).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.room = parts[1] if len(parts) > 2 else "(root)"
        self.source = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        self.nodes = tuple(ast.walk(self.tree))

    @property
    def comments(self) -> int:
        """How many lines hold a comment."""
        return self._lines[0]

    @property
    def code(self) -> int:
        """How many lines hold code."""
        return self._lines[1]

    @cached_property
    def _lines(self) -> tuple[int, int]:
        # Counted on demand: it takes longer than everything else here, and most rules do not look at lines.
        return _count_lines(self.source, self.nodes)


def _count_lines(source: str, nodes: Iterable[ast.AST]) -> tuple[int, int]:
    """Return the lines that hold a comment, and the lines that hold code; directives for tools are no comments."""
    described: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            described.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    comments: set[int] = set()
    code: set[int] = set()
    skipped = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            directive = re.match(r"#\s*(noqa|type:|pyright:|fmt:)", token.string)
            if directive is None or " - " in token.string:
                comments.add(token.start[0])
        elif token.type not in skipped:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(comments), len(code - described)


def modules_of(clone: Path) -> list[Module]:
    root = clone / "src" / "holdfast"
    return [Module(root, path) for path in sorted(root.rglob("*.py"))]


def import_graph(modules: list[Module]) -> dict[str, set[str]]:
    """Return who imports whom when the program runs; a package's own page counts as a module.

    Imports for the type checker are left out: if they counted, two classes that hold each other could not be typed without a knot.
    """
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for_types = {id(node) for block in module.nodes if _is_for_types(block) for node in _within(block)}
        for node in module.nodes:
            if id(node) in for_types:
                continue
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    target = inner if inner in names else node.module
                    if target in names:
                        graph[module.name].add(target)
            elif isinstance(node, ast.Import):
                graph[module.name].update(alias.name for alias in node.names if alias.name in names)
    return graph


def shared_class_names(modules: list[Module]) -> list[str]:
    """Return the names that several classes have, without those that begin with an underscore."""
    count = Counter(
        node.name
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, number in count.items() if number > 1)


def reasons_for_names() -> dict[str, str]:
    """Return the class names that stay with several classes, each with its reason."""
    lines = Path(__file__).with_name("house_names.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(": ") for line in lines if line and not line.startswith("#"))
    return {name: reason for name, _, reason in pairs}


def mistakes_in_names(modules: list[Module]) -> list[str]:
    """Return what is wrong with the names of several classes: too many, without a reason, or a reason without a name."""
    shared, reasons = shared_class_names(modules), reasons_for_names()
    mistakes = [
        f"{name}: several classes have it, and scripts/house_names.txt has no reason"
        for name in shared
        if name not in reasons
    ]
    mistakes += [
        f"{name}: it has a reason in scripts/house_names.txt, and only one class has it"
        for name in reasons
        if name not in shared
    ]
    if len(shared) > MOST_SHARED_NAMES:
        mistakes.append(f"{len(shared)} names are shared, more than {MOST_SHARED_NAMES}")
    return mistakes


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _within(block: ast.AST) -> Iterable[ast.AST]:
    # Not what stands in its `else`: that is imported when the program runs.
    return (node for statement in getattr(block, "body", ()) for node in ast.walk(statement))


def untyped_seams(modules: list[Module]) -> list[str]:
    """Return the functions that take an operation or a connection as `Any`."""
    return [
        f"{module.name}.{node.name}"
        for module in modules
        if module.room in {"runtime", "bridge", "manager"}
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for given in (*node.args.args, *node.args.kwonlyargs)
        if given.arg in {"op", "connection"} and isinstance(given.annotation, ast.Name) and given.annotation.id == "Any"
    ]


def largest_knot(graph: dict[str, set[str]]) -> list[str]:
    """Return the largest set of modules that all reach each other."""
    reached = {name: _reachable(graph, name) for name in graph}
    knots = [[other for other in reached[name] if name in reached[other]] for name in graph]
    return sorted(max(knots, key=len))


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    to_visit = [start]
    while to_visit:
        new = graph[to_visit.pop()] - seen
        seen |= new
        to_visit.extend(new)
    return seen


def writers_of_operation(modules: list[Module]) -> list[str]:
    """Return the modules that assign an operation's attributes, or derive a class from it."""
    return sorted(module.name for module in modules if any(_writes_operation(node) for node in module.nodes))


def _writes_operation(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        if node.name == "Operation":
            return True
        return any(isinstance(base, ast.Name) and base.id.endswith("Operation") for base in node.bases)
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = [part for target in node.targets for part in _parts(target)]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    return any(isinstance(target, ast.Attribute) and _names_operation(target.value) for target in targets)


def _parts(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for element in target.elts for part in _parts(element)]
    return [target]


def _names_operation(value: ast.expr) -> bool:
    if isinstance(value, ast.Name):
        return value.id in OPERATION_NAMES
    return isinstance(value, ast.Attribute) and value.attr in OPERATION_NAMES


def stream_loops(modules: list[Module]) -> list[str]:
    """Return the modules that decide what a stream's failure after its first item becomes."""
    found = []
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.Call) and module.room not in {"faults", "(root)"}:
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called in CUTS and not module.name.endswith(".operation"):
                    found.append(module.name)
                    break
    return found


def gerunds(modules: list[Module]) -> list[str]:
    return [
        module.name
        for module in modules
        if (word := re.split(r"[._]", module.name)[-1]).endswith("ing") and word not in NOUNS_IN_ING
    ]


def avoided_words(modules: list[Module]) -> Counter[str]:
    return Counter(match[0].lower() for module in modules for match in AVOIDED_WORDS.finditer(module.source))


def undocumented(modules: list[Module]) -> list[str]:
    """Return the public names without a docstring: what the package root and its facades export, and their methods."""
    by_name = {module.name: module for module in modules}
    missing = []
    # A package may export modules, as `holdfast.views` does: their names are public as well.
    exported = {
        f"{package}.{name}" for package in PUBLIC_PACKAGES & by_name.keys() for name in _exported(by_name[package])
    }
    for facade in modules:
        if facade.name in PUBLIC_PACKAGES | exported or (
            facade.room == "(root)" and not facade.name.rpartition(".")[2].startswith("_")
        ):
            for name in _exported(facade):
                found = _definition(by_name, facade, name, 0)
                if found is not None:
                    missing.extend(f"{facade.name}.{name}{where}" for where in _without_docstring(found))
    return sorted(set(missing))


def _exported(module: Module) -> list[str]:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [element.value for element in getattr(node.value, "elts", []) if isinstance(element, ast.Constant)]
    return []


def _definition(by_name: dict[str, Module], module: Module, name: str, depth: int) -> ast.AST | None:
    for node in module.nodes:
        is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        # Of overloads only the last, which is the function itself, needs words.
        if is_definition and node.name == name and not _is_overload(node):
            return node
    if depth < 5:
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module in by_name:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _definition(by_name, by_name[node.module], alias.name, depth + 1)
    return None


def _is_overload(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(getattr(decorator, "id", "") == "overload" for decorator in node.decorator_list)


def _without_docstring(node: ast.AST) -> list[str]:
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    missing = [] if ast.get_docstring(node) else [""]
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                setter = any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in member.decorator_list)
                if not _is_overload(member) and not setter and not ast.get_docstring(member):
                    missing.append(f".{member.name}")
    return missing


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    clone = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    modules = modules_of(clone)
    rooms: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        rooms[module.room].append(module)
    print(f"{'room':<14}{'modules':>8}{'code':>8}{'comments':>10}")
    for room, held in sorted(rooms.items()):
        print(f"{room:<14}{len(held):>8}{sum(m.code for m in held):>8}{sum(m.comments for m in held):>10}")
    code, comments = sum(m.code for m in modules), sum(m.comments for m in modules)
    print(f"{'in all':<14}{len(modules):>8}{code:>8}{comments:>10}")
    print()
    reasons = reasons_for_names()
    lists = {
        "largest knot in the import graph": largest_knot(import_graph(modules)),
        "writers of Operation": writers_of_operation(modules),
        "stream loops": stream_loops(modules),
        "operations and connections as Any": untyped_seams(modules),
        "gerund module names": gerunds(modules),
        "names of several classes": [f"{name:<20}{reasons.get(name, '?')}" for name in shared_class_names(modules)],
        "public names without a docstring": undocumented(modules),
    }
    for what, names in lists.items():
        print(f"{what:<36}{len(names):>6}")
        if "--list" in sys.argv:
            print(*(f"    {name}" for name in names), sep="\n")
    print(f"{'comment density, % of code lines':<36}{100 * comments / code:>6.1f}")
    if "--check" in sys.argv and (mistakes := mistakes_in_names(modules)):
        sys.exit("\n".join(mistakes))
    words = avoided_words(modules)
    print(f"{'words for data that say nothing':<36}{sum(words.values()):>6}  {dict(words)}")


if __name__ == "__main__":
    main()
