"""The cut of a recorded graph into engines, and operators between them that PyTorch runs.

`levels` says which calls are together, `data_sizes` which sizes no engine can make, `cut` makes the
engines, and `operators` writes the other calls as steps that a checkpoint can hold.
"""

from t2t.partition.cut import Wishes, partitioned
from t2t.partition.levels import levels

__all__ = ["Wishes", "levels", "partitioned"]
