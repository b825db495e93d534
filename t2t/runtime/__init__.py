"""Loading a plan on a GPU and running it on torch tensors."""

from t2t.runtime.engine import Engine
from t2t.runtime.execution import Execution
from t2t.runtime.idle import idle_engine
from t2t.runtime.plans import Origin, PlanData, as_plan, deserialize, origin_of

__all__ = [
    "Engine",
    "Execution",
    "Origin",
    "PlanData",
    "as_plan",
    "deserialize",
    "idle_engine",
    "origin_of",
]
