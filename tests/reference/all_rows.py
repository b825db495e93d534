"""Every row."""

from tests.reference.rows_convolution import CONVOLUTION_ROWS
from tests.reference.rows_moving import MOVING_ROWS
from tests.reference.rows_pointwise import POINTWISE_ROWS

ROWS = [*CONVOLUTION_ROWS, *POINTWISE_ROWS, *MOVING_ROWS]
