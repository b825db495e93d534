"""The code in README and CONTRIBUTING runs: what they promise is what t2t does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    files = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    missing = [file for file in files if not (ROOT / file).exists()]
    assert not missing
