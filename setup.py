"""Packaging of t2t: metadata and dependencies (tool settings stand in pyproject.toml)."""

import re
from pathlib import Path

from setuptools import find_packages, setup

RTX = ["tensorrt-rtx-cu13>=1.5"]
VISION = ["torchvision>=0.23", "pillow"]
# pytest-xdist: the tests on all cores. setuptools: a test reads the metadata that it writes; older
# ones know no licence expressions. opt_einsum: many have it, and PyTorch uses it where it is.
CHECKS = [
    "pytest>=8",
    "pytest-xdist",
    "hypothesis",
    "mypy",
    "ruff",
    "setuptools>=77",
    "opt_einsum",
]
# Its handwritten digits come with the package: a task that a network learns in seconds.
LEARNING = ["scikit-learn"]
# Models that these have quantized convert as they come. huggingface_hub: ModelOpt imports it, and
# does not say so.
QUANTIZERS = ["nvidia-modelopt>=0.40", "torchao>=0.14", "huggingface_hub"]
NOTEBOOK = ["nbclient", "nbformat", "ipykernel", "matplotlib"]
ONNX = ["onnx", "onnxscript"]
# Triton's own protobuf reads what `t2t triton` writes.
TRITON = ["tritonclient", "protobuf"]
# requests and tqdm: facenet-pytorch needs them; it pins a torch of 2024, so make installs it
# without its dependencies.
DEMO = ["scikit-image", "requests", "tqdm"]
# The picture of a network is tried in a browser where chromium and its driver are installed.
BROWSER = ["selenium"]
# Models of others that tests convert: vision transformers, Whisper, Llama, detectors.
# opencv and pyyaml: ultralytics needs them; make installs it without its other dependencies.
MODELS = ["timm>=1.0.20", "transformers>=5.0", "opencv-python-headless", "pyyaml"]
# More of `make sweep`; nothing else needs them.
SWEEP = [*MODELS, "segmentation-models-pytorch>=0.5"]

HERE = Path(__file__).parent
README = (HERE / "README.md").read_text(encoding="utf-8")
[VERSION] = re.findall(r'^__version__ = "(.+)"', (HERE / "t2t/version.py").read_text(), re.M)

setup(
    name="t2t",
    version=VERSION,
    description="PyTorch models to TensorRT: one call, readable converters, no silent wrong answer",
    # A package index shows the page alone: links to files of the repository lose their targets.
    long_description=re.sub(r"\[([^\]]+)\]\((?!https://|#)[^)]+\)", r"\1", README),
    long_description_content_type="text/markdown",
    author="The t2t contributors",
    license_expression="MIT",
    license_files=["LICENSE"],
    keywords=["pytorch", "tensorrt", "tensorrt-rtx", "inference", "converter"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["t2t", "t2t.*"]),
    package_data={"t2t": ["py.typed", "reference/assets/*", "module/assets/*"]},
    python_requires=">=3.10",
    entry_points={
        "console_scripts": ["t2t = t2t.cli:main"],
        "torch_dynamo_backends": ["t2t = t2t.compiler:backend"],
    },
    # click: the command line. It has no dependencies, full types and a runner for tests, and takes
    # 0.06 s to import; typer would put its own annotations in between.
    # rich: progress bars and tables that behave on terminals, in logs and in notebooks.
    # typing_extensions: `override` before Python 3.12; it comes with torch.
    # xxhash: keys of the engine cache, where hashlib's functions take a third of the time of a
    # build, and checksums of checkpoints, where zlib's CRC-32 takes as long as reading the file.
    install_requires=["torch>=2.8", "numpy", "click>=8.2", "rich", "typing_extensions", "xxhash"],
    extras_require={
        "rtx": RTX,
        "tensorrt": ["tensorrt>=10.7"],
        "onnx": ["onnx"],  # t2t.from_onnx
        "vision": VISION,
        "test": [
            *CHECKS,
            *LEARNING,
            *QUANTIZERS,
            *MODELS,
            *NOTEBOOK,
            *ONNX,
            *TRITON,
            *DEMO,
            *BROWSER,
        ],
        "sweep": SWEEP,
    },
)
