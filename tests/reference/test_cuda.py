"""The same programs on a GPU: every row gives there what it gives on the CPU."""

import pytest
import torch

from tests.reference.all_rows import ROWS
from tests.reference.rows import Row

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


# Which of two updates of one element wins is undefined, in TensorRT as in torch.
UNORDERED = ("scatter element",)
SAME = [row for row in ROWS if row.name not in UNORDERED]


@pytest.mark.parametrize("row", SAME, ids=lambda row: row.name)
def test_layer_on_cuda(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    # TF32 would be right to three digits only.
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    program = row.program()
    tensors = row.tensors(1)
    on_cpu = program.run(tensors)
    on_cuda = program.run([tensor.cuda() for tensor in tensors])
    for name, got in on_cuda.items():
        assert got.is_cuda == bool(tensors), "constants alone are computed on the CPU"
        torch.testing.assert_close(
            got.cpu(), on_cpu[name], rtol=max(row.rtol, 1e-5), atol=max(row.atol, 1e-5),
            equal_nan=True,
        )  # fmt: skip
