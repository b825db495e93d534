"""Each layer computes what its row says, on two different inputs."""

import pytest
import torch

from t2t.reference import Program
from tests.reference.all_rows import ROWS
from tests.reference.rows import Row, wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_layer(row: Row) -> None:
    program = row.program()
    loaded = Program.from_state(program.to_state())
    assert str(loaded) == str(program)
    for seed in (1, 2):
        tensors = row.tensors(seed)
        results = program.run([tensor.clone() for tensor in tensors])
        for got, want in zip(results.values(), wanted(row, tensors), strict=True):
            torch.testing.assert_close(
                got, want, rtol=row.rtol, atol=row.atol, equal_nan=True, check_device=True
            )
