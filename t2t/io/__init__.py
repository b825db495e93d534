"""What goes into a module and what comes out: trees of tensors, names, shapes, ranges."""

from t2t.io.arguments import Parameters, arguments
from t2t.io.declared import DynamicDimension, InputShape, declared_shapes
from t2t.io.signature import Shape, Signature, TensorSpec
from t2t.io.tree import (
    Structure,
    check_structure,
    classes_of,
    flatten,
    leaf_paths,
    map_tree,
    match,
    tree_leaves,
    unflatten,
)

__all__ = [
    "DynamicDimension",
    "InputShape",
    "Parameters",
    "Shape",
    "Signature",
    "Structure",
    "TensorSpec",
    "arguments",
    "check_structure",
    "classes_of",
    "declared_shapes",
    "flatten",
    "leaf_paths",
    "map_tree",
    "match",
    "tree_leaves",
    "unflatten",
]
