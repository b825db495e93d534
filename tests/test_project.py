"""Rules of the project that no tool checks: who imports whom, sizes, words, versions."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import t2t

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "t2t"
# Each part may import itself and the parts before it.
ORDER = (
    "errors",
    "backend",
    "dtypes",
    "structure",
    "signature",
    "shapes",
    "declared",
    "registry",
    "precision",
    "network",
    "formulas",
    "converters",
    "plugins",
    "tracing",
    "reference",
    "building",
    "lowering",
    "runtime",
    "module",
    "verification",
    "conversion",
    "cli",
)
SOURCES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 500  # lines; the aim is 300


def part(path: Path) -> str:
    """Name the part of t2t that a file belongs to: t2t/network/core.py is of "network"."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> list[str]:
    """List the modules that a file imports, wherever in the file it does so."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            names += [f"t2t.{a.name}" for a in node.names] if module == "t2t" else [module]
    return names


def in_order(names: list[str]) -> list[str]:
    """Sort as ruff does: constants, classes, functions."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def tracked() -> list[Path]:
    """List the files of the project: what git knows, with what is not ignored yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for line in listing.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_every_part_has_its_place() -> None:
    parts = {part(path) for path in SOURCES} - {"__init__", "__main__"}
    assert parts <= set(ORDER), "put the new part into ORDER, where its imports allow"
    assert {"errors", "backend", "converters", "reference", "conversion"} <= parts


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    own = part(path)
    if own in ("__init__", "__main__"):
        return  # the package itself imports what it exports
    allowed = ("errors", "backend", "dtypes") if own == "reference" else ORDER[: ORDER.index(own)]
    for name in imported(path):
        if name.split(".")[0] == "t2t":
            other = name.split(".")[1]
            assert other == own or other in allowed, f"{own} imports {name}"


def test_one_door_to_tensorrt() -> None:
    for path in [*SOURCES, *(ROOT / "examples").glob("*.py")]:
        named = [n for n in imported(path) if n.split(".")[0] in ("tensorrt", "tensorrt_rtx")]
        assert not named, f"{path}: imports {named}; write `from t2t.backend import trt`"


def test_public_names_are_a_sorted_list() -> None:
    assert t2t.__all__ == in_order(t2t.__all__)
    for name in t2t.__all__:
        assert hasattr(t2t, name), name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_lists_its_names(path: Path) -> None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            assert names == in_order(names)
            assert len(names) == len(set(names))


def test_files_stay_short() -> None:
    long = {str(p.relative_to(ROOT)): n for p in SOURCES if (n := _lines(p)) > LONGEST_FILE}
    assert not long, "split by topic"


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_star_imports_and_no_absolute_paths() -> None:
    # Brackets keep this file from finding itself.
    words = re.compile(
        r"/(?:wor[k]|tm[p]|roo[t]|hom[e])/|\.librar[y]|this sessio[n]|issue #\d|"
        r"^from \S+ import [*]",
        re.IGNORECASE | re.MULTILINE,
    )
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{path.relative_to(ROOT)}: {match[0]!r}" for match in words.finditer(text)]
    assert not found


def test_changelog_speaks_of_this_version() -> None:
    [version] = re.findall(r'version="(\S+)"', _text("setup.py"))
    headings = re.findall(r"^## \[(\S+)\]", _text("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == version, "the first entry of CHANGELOG.md is of another version"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_of_the_documents_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", _text("Makefile"), re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z]+)", _text(name), re.MULTILINE))
    assert used
    assert used <= targets


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
