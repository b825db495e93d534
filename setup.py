"""Packaging of t2t: metadata and dependencies (tool settings stand in pyproject.toml)."""

from pathlib import Path

from setuptools import find_packages, setup

RTX = ["tensorrt-rtx-cu13>=1.5"]
VISION = ["torchvision>=0.24", "pillow"]
CHECKS = ["pytest>=8", "hypothesis", "mypy", "ruff"]
NOTEBOOK = ["nbclient", "nbformat", "ipykernel", "matplotlib"]
ONNX = ["onnx", "onnxscript"]
# requests and tqdm: facenet-pytorch needs them; it pins a torch of 2024, so make installs it
# without its dependencies.
DEMO = ["scikit-image", "requests", "tqdm"]
# The picture of a network is tried in a browser where chromium and its driver are installed.
BROWSER = ["selenium"]
# The models of `make sweep`; nothing else needs them.
SWEEP = ["timm>=1.0.20", "transformers>=5.0", "segmentation-models-pytorch>=0.5"]

setup(
    name="t2t",
    version="0.1.0",
    description="PyTorch models to TensorRT: one call, readable converters, no silent wrong answer",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["t2t", "t2t.*"]),
    package_data={"t2t": ["py.typed", "reference/assets/*"]},
    python_requires=">=3.11",
    # rich: progress bars and tables that behave on terminals, in logs and in notebooks.
    install_requires=["torch>=2.9", "numpy", "rich"],
    extras_require={
        "rtx": RTX,
        "tensorrt": ["tensorrt>=10.7"],
        "vision": VISION,
        "test": [*CHECKS, *NOTEBOOK, *ONNX, *DEMO, *BROWSER],
        "sweep": SWEEP,
    },
)
