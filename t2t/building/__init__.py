"""From a finished network to a plan."""

from t2t.building.builder import Profile, Range, build, built_for, create_builder

__all__ = ["Profile", "Range", "build", "built_for", "create_builder"]
