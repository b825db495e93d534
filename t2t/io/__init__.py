"""What goes into a module and what comes out: trees of tensors, names, shapes, ranges."""

from t2t.io.arguments import Parameters, arguments
from t2t.io.signature import (
    Dimension,
    Facts,
    Place,
    Profile,
    Shape,
    Signature,
    TensorSpec,
    facts_of,
    names_of_sizes,
    range_problem,
    whole_range,
)
from t2t.io.tree import (
    Structure,
    check_structure,
    classes_of,
    copied,
    flatten,
    leaf_paths,
    map_tree,
    match,
    tree_leaves,
    unflatten,
)

__all__ = [
    "Dimension",
    "Facts",
    "Parameters",
    "Place",
    "Profile",
    "Shape",
    "Signature",
    "Structure",
    "TensorSpec",
    "arguments",
    "check_structure",
    "classes_of",
    "copied",
    "facts_of",
    "flatten",
    "leaf_paths",
    "map_tree",
    "match",
    "names_of_sizes",
    "range_problem",
    "tree_leaves",
    "unflatten",
    "whole_range",
]
