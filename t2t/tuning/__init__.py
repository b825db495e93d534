"""Which modules lose accuracy in low precision, and which have to stay in float32."""

from t2t.tuning.search import tuned
from t2t.tuning.shares import Sensitivity, Share, sensitivity
from t2t.tuning.trials import Trials

__all__ = ["Sensitivity", "Share", "Trials", "sensitivity", "tuned"]
