"""Every row."""

from tests.reference.rows_attention import ATTENTION_ROWS
from tests.reference.rows_control import CONTROL_ROWS
from tests.reference.rows_convolution import CONVOLUTION_ROWS
from tests.reference.rows_matrix import MATRIX_ROWS
from tests.reference.rows_moving import MOVING_ROWS
from tests.reference.rows_normalization import NORMALIZATION_ROWS
from tests.reference.rows_pointwise import POINTWISE_ROWS
from tests.reference.rows_sampling import SAMPLING_ROWS

ROWS = [
    *CONVOLUTION_ROWS,
    *POINTWISE_ROWS,
    *NORMALIZATION_ROWS,
    *MOVING_ROWS,
    *ATTENTION_ROWS,
    *MATRIX_ROWS,
    *SAMPLING_ROWS,
    *CONTROL_ROWS,
]
