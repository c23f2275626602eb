"""The folders and what may import what: specs < verify < search < reports, and nothing heavy in specs."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("specs", "verify", "search", "reports")
HEAVY = {
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "ml_dtypes",
    "sympy",
    "z3",
    "flint",
    "plotly",
    "jinja2",
    "safetensors",
}
LONGEST = 500
MEDIAN = 200


def modules(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield str(node.module), node.lineno


def forbidden(path: Path) -> set[str]:
    """The top-level names that a module may not import."""
    package = path.relative_to(ROOT).parts[0]
    above = set(LAYERS[LAYERS.index(package) + 1 :])
    return above | {"tests", "benchmarks"} | (HEAVY if package == "specs" else set())


@pytest.mark.parametrize("path", modules(*LAYERS), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    banned = forbidden(path)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [
        f"{path.name}:{line} imports {name}"
        for name, line in imported(tree)
        if name.partition(".")[0] in banned
    ]
    assert not found


def test_the_rule_sees_lazy_and_dotted_imports():
    text = "import os\ndef f():\n    import jax.numpy as jnp\n    from verify.numerics import ulp\n"
    assert list(imported(ast.parse(text))) == [("os", 1), ("jax.numpy", 3), ("verify.numerics", 4)]
    assert {"verify", "reports", "jax", "tests"} <= forbidden(ROOT / "specs" / "cli.py")
    assert forbidden(ROOT / "reports" / "html.py") == {"tests", "benchmarks"}


def test_modules_are_small():
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules(*LAYERS, "benchmarks")
    }
    long = {str(path.relative_to(ROOT)): n for path, n in lines.items() if n >= LONGEST}
    assert not long
    shipped = sorted(n for path, n in lines.items() if path.relative_to(ROOT).parts[0] in LAYERS)
    assert shipped[len(shipped) // 2] < MEDIAN


def test_nothing_evaluates_text():
    """Neither eval nor exec nor a parser that runs code, in anything that is shipped."""
    names = {"eval", "exec", "compile", "sympify", "parse_expr", "literal_eval"}
    calls: list[str] = []
    for path in modules(*LAYERS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            own = isinstance(called, ast.Name) and called.id in names - {"parse_expr"}
            foreign = isinstance(called, ast.Attribute) and called.attr in {"sympify", "literal_eval"}
            if own or foreign:
                calls.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not calls
