"""What networks, building and running use of TensorRT exists in every version we speak of.

tests/data/trt_api.json lists the members of TensorRT's classes in its releases, as introspection of
the bindings gave them.
"""

import ast
import json
from pathlib import Path

import pytest

from t2t.plugins.sizes import _OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
API = json.loads((ROOT / "tests" / "data" / "trt_api.json").read_text(encoding="utf-8"))

# What our variables hold, by file: the code keeps to these names.
OBJECTS = {
    "t2t/building/builder.py": {
        "builder": "Builder",
        "config": "IBuilderConfig",
        "profile": "IOptimizationProfile",
        "network": "INetworkDefinition",
        "tensor": "ITensor",
    },
    "t2t/building/cache.py": {
        "config": "IBuilderConfig",
        "network": "INetworkDefinition",
        "tensor": "ITensor",
    },
    "t2t/building/progress.py": {},
    "t2t/network/core.py": {"layer": "ILayer"},
    "t2t/network/layers.py": {},
    "t2t/network/loops.py": {"layer": "ILayer"},
    "t2t/network/movement.py": {},
    "t2t/onnx.py": {
        "network": "INetworkDefinition",
        "parser": "OnnxParser",
        "error": "ParserError",
        "tensor": "ITensor",
    },
    "t2t/plugins/classes.py": {
        "desc": "PluginTensorDesc",
        "field": "PluginField",
        "registry": "IPluginRegistry",
    },
    "t2t/plugins/sizes.py": {"builder": "IExprBuilder"},
    "t2t/runtime/plans.py": {"runtime": "Runtime", "engine": "ICudaEngine"},
    "t2t/runtime/idle.py": {},
    "t2t/runtime/kernels.py": {"engine": "ICudaEngine", "config": "IRuntimeConfig"}
    | {"_config": "IRuntimeConfig", "cache": "IRuntimeCache"},
    "t2t/runtime/inspection.py": {"engine": "ICudaEngine"},
    "t2t/runtime/outputs.py": {},
    "t2t/runtime/execution.py": {"_engine": "ICudaEngine", "context": "IExecutionContext"},
}
# What methods of these are called by name: core.add_to(owner, "add_trip_limit", ...).
OWNERS = ("INetworkDefinition", "ILoop", "IIfConditional")
# Asked for by feature, or only where backend.is_rtx().
RTX_ONLY = {
    ("ComputeCapability", None),
    ("DynamicShapesKernelSpecializationStrategy", None),
    ("EngineInvalidityDiagnostics", None),
    ("EngineValidity", None),
    ("EngineValidity", "INVALID"),
    ("IBuilderConfig", "get_compute_capability"),
    ("IBuilderConfig", "num_compute_capabilities"),
    ("IBuilderConfig", "set_compute_capability"),
    ("IRuntimeCache", "deserialize"),
    ("ICudaEngine", "create_runtime_config"),
    ("IRuntimeCache", "serialize"),
    ("IRuntimeConfig", "create_runtime_cache"),
    ("IRuntimeConfig", "set_runtime_cache"),
    ("IRuntimeConfig", "dynamic_shapes_kernel_specialization_strategy"),
    ("Runtime", "get_engine_validity"),
}
# Asked for with backend.has_layer, or refused with the version's name where it is not there.
NEWER = {
    ("INetworkDefinition", "add_cumulative"),
    ("INetworkDefinition", "add_plugin_v3"),
    ("INetworkDefinition", "add_unsqueeze"),
}


def uses(path):
    """List (class, member) of TensorRT in a file; member is None for the class itself."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add", "add_to"):
            names = [x.value for x in node.args[:2] if isinstance(x, ast.Constant)]
            for name in names[:1]:
                owners = [cls for cls in OWNERS if versions_with(cls, name)] or OWNERS[:1]
                found.update((cls, name) for cls in owners)
        if not isinstance(node, ast.Attribute):
            continue
        value = node.value
        if isinstance(value, ast.Name) and value.id == "trt":
            found.add((node.attr, None))
        elif isinstance(value, ast.Attribute) and getattr(value.value, "id", "") == "trt":
            found.add((value.attr, node.attr))
        else:
            name = getattr(value, "attr", getattr(value, "id", ""))
            if name in OBJECTS[path]:
                found.add((OBJECTS[path][name], node.attr))
    return sorted(found, key=str)


def versions_with(cls, member):
    entry = API["classes"][cls]
    present = API["versions"] if entry["in"] == "all" else entry["in"]
    if member is None or member in entry["members"]["all"]:
        return present
    return entry["members"].get(member, [])


# What is not in the data; each has been there since TensorRT 8.
FUNCTIONS = {("get_plugin_registry", None), ("DeviceType", None), ("DeviceType", "DLA")}
USES = sorted(
    {use for path in OBJECTS for use in uses(path) if use[1] != "__init__"} - FUNCTIONS - NEWER,
    key=str,
)


@pytest.mark.parametrize(("cls", "member"), USES, ids=str)
def test_every_version_has_it(cls, member):
    wanted = [v for v in API["versions"] if v.startswith("rtx") or (cls, member) not in RTX_ONLY]
    missing = [version for version in wanted if version not in versions_with(cls, member)]
    assert not missing


def definitions(name):
    """List what a class within t2t/plugins/classes.py defines and sets on itself."""
    tree = ast.parse((ROOT / "t2t/plugins/classes.py").read_text(encoding="utf-8"))
    [cls] = [node for node in ast.walk(tree) if getattr(node, "name", "") == name]
    methods = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)} - {"__init__"}
    sets = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and getattr(node.value, "id", "") == "self"
    }
    return methods, sets


OWN = {"building", "call", "fields", "results", "run", "text"}


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        (
            "Plugin",
            ["IPluginV3", "IPluginV3OneCore", "IPluginV3OneBuild", "IPluginV3OneRuntime"],
        ),
        ("Creator", ["IPluginCreatorV3One"]),
    ],
)
def test_every_version_asks_for_what_a_plugin_answers(name, bases):
    methods, sets = definitions(name)
    assert len(methods) >= 1
    for member in methods | sets - OWN:
        for version in API["versions"]:
            assert any(version in versions_with(base, member) for base in bases), member


def test_every_version_has_the_operations_on_sizes():
    for operation in _OPERATIONS.values():
        assert versions_with("DimensionOperation", operation) == API["versions"]


def test_what_is_newer_than_some_versions():
    for cls, member in NEWER:
        assert 0 < len(versions_with(cls, member)) < len(API["versions"])


def test_only_tensorrt_proper_has_plugin_layers():
    found = versions_with("INetworkDefinition", "add_plugin_v3")
    assert found == [version for version in API["versions"] if version.startswith("trt")]


def test_the_scan_sees_the_code():
    assert ("IExecutionContext", "execute_async_v3") in USES
    assert ("IBuilderConfig", "clear_flag") in USES
    assert ("Runtime", "deserialize_cuda_engine") in USES
    assert ("TensorIOMode", "INPUT") in USES
    assert ("IExprBuilder", "operation") in USES
    assert ("INetworkDefinition", "add_unary") in USES
    assert {("ILoop", "add_trip_limit"), ("IIfConditional", "add_output")} <= set(USES)
    assert {("ILayer", "set_input"), ("TripLimit", "WHILE"), ("LoopOutput", "REVERSE")} <= set(USES)
    assert ("PluginFieldType", "CHAR") in USES
    assert set(USES) >= RTX_ONLY
    assert len(USES) > 40


def test_the_data_tell_versions_apart():
    assert versions_with("Runtime", "get_engine_validity")
    assert not any(v.startswith("trt") for v in versions_with("Runtime", "get_engine_validity"))
    assert versions_with("Runtime", "no_such_thing") == []
    assert len(API["versions"]) == 11
