"""The models of the sweep, by package."""
