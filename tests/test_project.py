"""Rules of the project that no tool checks: who imports whom, sizes, words, versions."""

import ast
import email
import email.message
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import t2t

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "t2t"
# Each part may import itself and the parts before it.
ORDER = (
    "version",
    "errors",
    "torch_internals",
    "float32",
    "isolation",
    "examples",
    "backend",
    "dtypes",
    "files",
    "options",
    "io",
    "recording",
    "sizes",
    "registry",
    "operator_data",
    "precision",
    "rounding",
    "network",
    "formulas",
    "converters",
    "plugins",
    "tracing",
    "quantization",
    "reference",
    "building",
    "inputs",
    "lowering",
    "runtime",
    "module",
    "verification",
    "tuning",
    "partition",
    "benchmarking",
    "partial",
    "exported",
    "conversion",
    "compiler",
    "onnx",
    "compat",
    "cli",
)
# The executor judges converters, so it knows nothing of them.
REFERENCE_NEEDS = ("errors", "float32", "isolation", "backend", "dtypes", "files", "operator_data")
SOURCES = sorted(PACKAGE.rglob("*.py"))


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


def test_the_page_of_the_architecture_knows_every_part() -> None:
    page = _text("docs/architecture.md")
    parts, files = page.split("## The parts")[1].split("## Inside `tracing`")
    rows = re.findall(r"^\| (`.+?) \|", parts, re.MULTILINE)
    assert [row.strip("`") for row in rows] == list(ORDER)
    named = re.findall(r"`(\w+\.py)`", " ".join(re.findall(r"^\| (`.+?) \|", files, re.MULTILINE)))
    there = {path.name for path in (PACKAGE / "tracing").glob("*.py")} - {"__init__.py"}
    assert set(named) == there
    for part_needed in REFERENCE_NEEDS:
        assert f"`{part_needed}`" in page.split("The executor does not know")[1]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    own = part(path)
    if own in ("__init__", "__main__"):
        return  # the package itself imports what it exports
    allowed = REFERENCE_NEEDS if own == "reference" else ORDER[: ORDER.index(own)]
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
def test_lists_of_names_are_sorted(path: Path) -> None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            assert names == in_order(names)
            assert len(names) == len(set(names))


def test_no_star_imports_and_no_absolute_paths() -> None:
    # Brackets keep this file from finding itself.
    words = re.compile(
        r"/(?:wor[k]|tm[p]|roo[t]|hom[e])/|\.librar[y]/|this sessio[n]|issue #\d|"
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
    headings = re.findall(r"^## \[(\S+)\]", _text("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == t2t.__version__, "the first entry of CHANGELOG.md is of another version"


def setup_argument(name: str) -> Any:
    """Read a literal argument of setup() in setup.py."""
    for node in ast.walk(ast.parse(_text("setup.py"))):
        if isinstance(node, ast.keyword) and node.arg == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py has no {name}")


def test_what_is_imported_is_declared() -> None:
    """TensorRT is no requirement: it comes with an extra, and backend.py finds it."""
    packages = {name.split(".")[0] for path in SOURCES for name in imported(path)}
    packages -= {"t2t", *sys.stdlib_module_names}
    declared = {re.split(r"[<>=!~\[ ]", entry)[0] for entry in setup_argument("install_requires")}
    assert packages == declared


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> email.message.Message:
    """What a package index shows."""
    folder = tmp_path_factory.mktemp("metadata")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    text = (folder / "t2t.egg-info" / "PKG-INFO").read_text(encoding="utf-8")
    return email.message_from_string(text)


def test_the_version_stands_in_one_place(metadata: email.message.Message) -> None:
    assert metadata["Version"] == t2t.__version__
    found = [path for path in SOURCES if f'"{t2t.__version__}"' in path.read_text("utf-8")]
    assert [path.name for path in found] == ["version.py"]


def test_the_metadata_are_complete(metadata: email.message.Message) -> None:
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Summary"]
    assert metadata["Author"] == "The t2t contributors"
    classifiers = metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert any(name.startswith("Programming Language :: Python :: 3.1") for name in classifiers)
    # The licence expression takes the classifier's place.
    assert not any(name.startswith("License ::") for name in classifiers)


def test_the_index_page_has_no_links_to_files(metadata: email.message.Message) -> None:
    page = str(metadata.get_payload())
    assert page.lstrip().startswith("# t2t")
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert not [target for target in targets if not target.startswith(("https://", "#"))]
    assert "CONTRIBUTING.md" in page, "only the link goes, not its text"


def test_lazy_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(_text("t2t/__init__.py"))
    block = next(node for node in tree.body if isinstance(node, ast.If))  # if TYPE_CHECKING
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name: home for name, home in seen.items() if home != "t2t"} == t2t._HOMES
    assert set(seen) == set(t2t.__all__)


def test_a_service_imports_no_sympy_and_no_rich() -> None:
    code = (
        "import sys, t2t; t2t.load; t2t.TRTModule(); t2t.converter; t2t.record; "
        "sys.exit(bool({'sympy', 'rich', 'onnx', 'torch._dynamo'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_of_the_documents_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", _text("Makefile"), re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z]+)", _text(name), re.MULTILINE))
    assert used
    assert used <= targets


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
