"""The code in the documents runs: what they promise is what t2t does."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from t2t.cli import main

ROOT = Path(__file__).resolve().parents[1]
# The one warning that is no error here: without a GPU for it, a converted module runs in PyTorch.
SETTING = "import warnings, t2t; warnings.simplefilter('default', t2t.ReferenceExecutionWarning)"
FENCE = re.compile(r"^```(\w*)$")


def script(document: Path) -> str:
    """Give a document's Python blocks as one script in which each line keeps its number."""
    language = ""
    lines = []
    for line in document.read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line)
        if fence:
            language = "" if language else fence[1] or "text"
        lines.append(line if language == "python" and not fence else "")
    assert not language, "a code block is not closed"
    assert lines[0] == "", "the first line is the title"
    lines[0] = SETTING
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md", "CONTRIBUTING.md"])
def test_code_blocks_run(name: str, tmp_path: Path) -> None:
    code = script(ROOT / name)
    assert "import t2t" in code
    path = tmp_path / f"{Path(name).stem}.py"
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


def blocks(document: Path, language: str) -> list[str]:
    """Give the text of a document's blocks in one language."""
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def command_lines(document: Path) -> list[tuple[str, int]]:
    """Give the lines of a document that call t2t, and the exit codes that they say."""
    lines = "".join(blocks(document, "bash")).splitlines()
    return [
        (line, int(re.findall(r"# exit code (\d+)", line)[0]) if "# exit code" in line else 0)
        for line in lines
        if line.startswith("t2t ")
    ]


@pytest.mark.parametrize("name", ["docs/guide.md", "docs/cli.md"])
def test_command_lines_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for code in blocks(ROOT / name, "python"):
        if file := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / file[1]).write_text(code, encoding="utf-8")
    lines = command_lines(ROOT / name)
    assert lines
    for line, code in lines:
        arguments = shlex.split(line, comments=True)[1:]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, f"{line}:\n{result.output}"


def test_the_page_of_the_command_line_is_complete() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    used = {shlex.split(line)[1] for line, _ in command_lines(ROOT / "docs" / "cli.md")}
    assert used == set(main.commands)
    for command in main.commands.values():
        assert f"## {command.name}\n" in page
        for option in command.params:
            names = [*option.opts, *option.secondary_opts]
            said = any(re.search(rf"[`\s]{name}[`\s]", page) for name in names)
            assert said or isinstance(option, click.Argument), names


PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/guide.md", "docs/architecture.md"]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    missing = []
    for link in re.findall(r"\]\((?!https?://)([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing


def anchors(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
