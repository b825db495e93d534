"""The few modules and operators that have to stay in float32 for a tolerance."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from t2t.errors import VerificationError
from t2t.precision import Policy, Trial, Tuning
from t2t.tuning.trials import Trials
from t2t.tuning.units import Unit, kept, root

_FEW = 8
"""So many modules are tried one by one: can it do without?"""

_log = logging.getLogger(__name__)


def tuned(trials: Trials, policy: Policy, tolerance: float) -> Tuning:
    """Find what has to stay in float32, besides what the policy keeps there already.

    Modules are measured alone in low precision, from the top of the module tree down: only those
    that are too much for the tolerance are taken apart. As the errors of modules are nearly
    independent, their squares add up, which says how many of the worst must stay; bisection on
    that number, with networks in which they do, says it exactly.

    Args:
        trials: the original and its trace.
        policy: the precision that is asked for.
        tolerance: the largest relative error of an output, as `verify` measures it.

    Raises:
        VerificationError: no list meets the tolerance, as float32 itself does not.
    """
    return _Search(trials, policy, tolerance, root(trials.calls(policy))).run()


@dataclass
class _Search:
    trials: Trials
    policy: Policy
    tolerance: float
    whole: Unit
    tried: dict[str, float] = field(default_factory=dict)

    def run(self) -> Tuning:
        error = self._error("nothing in float32", self.policy)
        if error <= self.tolerance:
            return self._result(self.policy, error)
        floor = self._error("everything in float32", replace(self.policy, only=frozenset()))
        if not floor <= self.tolerance:
            raise VerificationError(
                f"tolerance={self.tolerance:g} cannot be met: with every module in float32, the "
                f"network's relative error is {floor:.2e}; allow more than that"
            )
        units = self._ranked(self.whole.parts)
        while True:
            count = self._least(units)
            apart = [unit for unit in units[:count] if unit.parts]
            if not apart:
                break
            whole = [unit for unit in units if unit not in apart]
            units = self._ranked([*whole, *(part for unit in apart for part in unit.parts)])
        chosen = units[:count]
        error = self._of(chosen)
        if not error <= self.tolerance:
            raise VerificationError(
                f"tolerance={self.tolerance:g} cannot be met by naming modules and operators: with "
                f"all of them in float32 the relative error is {error:.2e}"
            )
        # What was bad alone may be good where others stay.
        for unit in chosen[::-1] if len(chosen) <= _FEW else ():
            fewer = [other for other in chosen if other is not unit]
            if fewer and self._of(fewer) <= self.tolerance:
                chosen = fewer
        return self._result(self._keeping(chosen), self._of(chosen))

    def _ranked(self, units: Sequence[Unit]) -> list[Unit]:
        """Return units, those of the largest errors first, as far apart as is worth it."""
        units = list(units)
        while True:
            errors = {unit: self._alone(unit) for unit in units}
            units.sort(key=lambda unit: -errors[unit])
            apart = {unit for unit in units[: self._expected(units, errors)] if unit.parts}
            if not apart:
                return units
            units = [part for unit in units for part in (unit.parts if unit in apart else [unit])]

    def _expected(self, units: Sequence[Unit], errors: dict[Unit, float]) -> int:
        """Return how many of the worst units have to stay, if squared errors add up."""
        rest = 0.0
        for count in range(len(units), 0, -1):
            rest += errors[units[count - 1]] ** 2
            if not math.sqrt(rest) <= self.tolerance:
                return count
        return 1

    def _least(self, units: Sequence[Unit]) -> int:
        """Return the least number of the worst units whose staying meets the tolerance."""
        low, high = 0, len(units)
        errors = {unit: self._alone(unit) for unit in units}
        count, step = self._expected(units, errors), 1
        while high - low > 1:
            # Steps that grow from what was expected, then halves.
            count = count if low < count < high else (low + high) // 2
            if self._of(units[:count]) <= self.tolerance:
                high, count = count, 0
            else:
                low, count, step = count, count + step, 2 * step
        return high

    def _alone(self, unit: Unit) -> float:
        return self._error(f"only {unit} in low precision", unit.alone(self.policy))

    def _of(self, units: Sequence[Unit]) -> float:
        policy = self._keeping(units)
        names = [*policy.fp32_modules, *policy.fp32_ops]
        return self._error(f"{', '.join(names)} in float32", policy)

    def _keeping(self, units: Sequence[Unit]) -> Policy:
        return kept(self.policy, self.whole.joined(units))

    def _error(self, what: str, policy: Policy) -> float:
        error = self.trials.error(policy)
        if what not in self.tried:
            _log.info("%s: relative error %.2e", what, error)
        self.tried.setdefault(what, error)
        return error

    def _result(self, policy: Policy, error: float) -> Tuning:
        found = tuple(Trial(what, value) for what, value in self.tried.items())
        return Tuning(policy.fp32_modules, policy.fp32_ops, self.tolerance, error, found)
