"""Does a converted module give what the original gives? Measured, by outputs and by layers."""

from t2t.verification.layers import LayerError, LayerReport, compare_layers
from t2t.verification.report import OutputReport, Report
from t2t.verification.trials import verify

__all__ = [
    "LayerError",
    "LayerReport",
    "OutputReport",
    "Report",
    "compare_layers",
    "verify",
]
