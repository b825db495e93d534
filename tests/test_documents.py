"""The code in the documents runs: what they promise is what t2t does."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import t2t
from t2t.cli import main

ROOT = Path(__file__).resolve().parents[1]
# The one warning that is no error here: without a GPU for it, a converted module runs in PyTorch.
SETTING = "import warnings, t2t; warnings.simplefilter('default', t2t.ReferenceExecutionWarning)"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
)
# Python that needs one of these is left out where it is not installed: `make sweep` has them.
OPTIONAL = ("transformers",)


def page(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Return the text of a page's blocks in one language."""
    return [code for kind, code in BLOCK.findall(page(name)) if kind == language]


def can_run(code: str) -> bool:
    """Return whether the packages that a block imports are installed, or must be."""
    nodes = ast.walk(ast.parse(code))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return all(importlib.util.find_spec(name) for name in imported & set(OPTIONAL) if name)


def script(name: str) -> str:
    """Return a page's Python blocks as one script in which each line keeps its number."""
    text = page(name)
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        if block[1] == "python" and can_run(block[2]):
            start = text.count("\n", 0, block.start(2))
            code = block[2].splitlines()
            lines[start : start + len(code)] = code
    assert lines[0] == "", "the first line is the title"
    lines[0] = SETTING
    return "\n".join(lines) + "\n"


# The page of the command line shows a file, which test_command_lines_run writes.
RUN = [name for name in PAGES if blocks(name, "python") and name != "docs/cli.md"]


@pytest.mark.parametrize("name", PAGES)
def test_blocks_are_closed_and_of_languages_that_are_run(name: str) -> None:
    text = page(name)
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(BLOCK.findall(text))
    assert {language for language, _ in BLOCK.findall(text)} <= {"python", "bash", "text"}


@pytest.mark.parametrize("name", RUN)
def test_code_blocks_run(name: str, tmp_path: Path) -> None:
    code = script(name)
    # Not under the name of a package that it imports (onnx).
    path = tmp_path / f"page_{Path(name).stem}.py"
    path.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-W", "error", path.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, f"{name}:\n{result.stdout}\n{result.stderr}"


def command_lines(name: str) -> list[tuple[str, int]]:
    """Return the lines of a page that call t2t, and the exit codes that they say."""
    lines = "".join(blocks(name, "bash")).splitlines()
    return [
        (line, int(re.findall(r"# exit code (\d+)", line)[0]) if "# exit code" in line else 0)
        for line in lines
        if line.startswith("t2t ")
    ]


@pytest.mark.parametrize("name", [name for name in PAGES if command_lines(name)])
def test_command_lines_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for code in blocks(name, "python"):
        if file := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / file[1]).write_text(code, encoding="utf-8")
    for line, code in command_lines(name):
        arguments = shlex.split(line, comments=True)[1:]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, f"{line}:\n{result.output}"


def test_the_page_of_the_command_line_is_complete() -> None:
    text = page("docs/cli.md")
    used = {shlex.split(line)[1] for line, _ in command_lines("docs/cli.md")}
    assert used == set(main.commands)
    for command in main.commands.values():
        assert f"## {command.name}\n" in text
        for option in command.params:
            names = [*option.opts, *option.secondary_opts]
            said = any(re.search(rf"[`\s]{name}[`\s]", text) for name in names)
            assert said or isinstance(option, click.Argument), names


def test_the_rules_of_precision_are_the_same_on_both_pages() -> None:
    page = (ROOT / "docs" / "precision.md").read_text(encoding="utf-8")
    rules = page.split("| | computes in |")[1].split("\n## ")[0].strip()
    assert rules.count("\n") > 8
    assert rules in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_of_errors_is_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.*) \|$", page("docs/errors.md"), re.MULTILINE)
    kinds = [name for name in t2t.errors.__all__ if name[0].isupper()]
    assert sorted(name for name, _, _ in rows) == sorted(kinds), "one row for each class"
    for name, meaning, remedy in rows:
        assert len(meaning) > 10, name
        assert len(remedy) > 10, name


def test_the_reference_is_complete() -> None:
    names = re.findall(r"^::: t2t\.(\w+)$", page("docs/api.md"), re.MULTILINE)
    assert sorted(names) == sorted([*t2t.__all__, "compat"])


def test_the_site_has_every_page() -> None:
    settings = page("mkdocs.yml").split("nav:\n")[-1]
    listed = re.findall(r": ([\w-]+\.md)$", settings, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    # tools/docs_hook.py makes these of the files at the root.
    assert sorted(listed) == sorted([*pages, "contributing.md", "changelog.md"])


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    missing = []
    # Blocks may hold what looks like a link.
    text = BLOCK.sub("", page(name))
    for link in re.findall(r"\]\((?!https?://)([^)]+)\)", re.sub(r"`[^`\n]+`", "", text)):
        file, _, anchor = link.partition("#")
        target = ROOT / name if not file else (ROOT / name).parent / file
        if file == "api.md" and anchor.startswith("t2t."):
            assert f"::: {anchor}" in page("docs/api.md"), link  # mkdocstrings makes the anchor
        elif not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing


def anchors(path: Path) -> list[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
