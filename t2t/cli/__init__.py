"""The command line: ``t2t`` and ``python -m t2t``."""

from __future__ import annotations

import click

from t2t.cli.commands import bench, draw, inspect, missing, operators, verify
from t2t.cli.conversion import convert
from t2t.cli.diagnosis import doctor
from t2t.cli.triton import triton
from t2t.version import __version__

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="t2t")
def main() -> None:
    """PyTorch modules to TensorRT engines.

    Exit codes: 0 fine; 1 outputs disagree, or something is missing; 2 wrong usage or a refusal; 130
    Ctrl-C. Every command takes --json.
    """


for _command in (convert, verify, inspect, missing, bench, draw, operators, doctor, triton):
    main.add_command(_command)
