"""Does a converted module give what the original gives? Measured, output by output."""

from t2t.verification.report import OutputReport, Report
from t2t.verification.trials import verify

__all__ = ["OutputReport", "Report", "verify"]
