"""TensorRT's plugin interface over a call of an operator, and the creator that revives it.

There is one kind of plugin for all operators: what a plan holds of each is its call, as data, so a
plan can be read wherever t2t and the operators are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from t2t import backend
from t2t.backend import trt
from t2t.dtypes import to_trt
from t2t.errors import BackendError, CheckpointError
from t2t.plugins.call import PluginCall
from t2t.plugins.sizes import to_dimension
from t2t.torch_internals import tensor_at

NAME, VERSION, NAMESPACE = "TorchOperator", "1", "t2t"
FIELD = "call"
"""The plugin's only field: its call as JSON, in UTF-8."""


def make_plugin(call: PluginCall, building: bool = True) -> Any:
    """Return an IPluginV3 of the backend in use that computes a call.

    Args:
        call: what it computes.
        building: whether it is for the builder, which runs plugins on data that mean nothing.
    """
    return _plugin_class(backend.name())(call, call.runner(), building)


def call_in(fields: Any) -> PluginCall:
    """Read the call that a PluginFieldCollection holds.

    Raises:
        CheckpointError: it holds none, or one that must not run here.
    """
    for field in fields:
        if field.name == FIELD:
            try:
                return PluginCall.from_text(np.asarray(field.data).tobytes().decode())
            except UnicodeDecodeError as error:
                raise CheckpointError(f"a plugin's call is damaged: {error}") from error
    raise CheckpointError("a plugin of the plan says of no operator that it computes")


def register_creator() -> Any:
    """Let TensorRT read plans with plugins of t2t, and return what makes these; once is enough.

    Raises:
        BackendError: TensorRT refuses.
    """
    return _creator(backend.name())


@functools.cache
def _creator(own: str) -> Any:
    with backend.use(own):

        class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.IPluginCreatorV3One.__init__(self)
                self.name, self.plugin_version, self.plugin_namespace = NAME, VERSION, NAMESPACE
                # TensorRT's wrapper keeps the address of the fields, not the fields.
                self.fields = trt.PluginFieldCollection([trt.PluginField(FIELD)])
                self.field_names = self.fields

            def create_plugin(self, _name: str, fields: Any, phase: Any) -> Any:
                try:
                    with backend.use(own):
                        return make_plugin(call_in(fields), phase == trt.TensorRTPhase.BUILD)
                except Exception as error:
                    backend.note_error(f"no plugin can be made: {error}")
                    raise

        creator = Creator()
        registry = trt.get_plugin_registry()
        backend.forget_errors()
        if registry.register_creator(creator, NAMESPACE):
            return creator
        # TensorRT's registry outlives a t2t that is imported again.
        known = registry.get_creator(NAME, VERSION, NAMESPACE)
        if known is None:
            raise BackendError(f"TensorRT registers no plugin: {backend.error_text()}")
        return known


@functools.cache
def _plugin_class(own: str) -> Any:
    """Return the class of plugins of a backend.

    TensorRT calls its methods from threads of its own, so each says which backend it is of.
    """
    with backend.use(own):
        bases = (
            trt.IPluginV3,
            trt.IPluginV3OneCore,
            trt.IPluginV3OneBuild,
            trt.IPluginV3OneRuntime,
        )

    class Plugin(*bases):  # type: ignore[misc]
        def __init__(self, call: PluginCall, run: Any, building: bool) -> None:
            for base in bases:
                base.__init__(self)
            self.plugin_name, self.plugin_version, self.plugin_namespace = NAME, VERSION, NAMESPACE
            self.num_outputs = len(call.outputs)
            self.metadata_string = call.operator
            self.call, self.run, self.building = call, run, building
            self.results = [output.dtype for output in call.outputs]
            # TensorRT reads the field after the method that gives it has returned.
            self.text = np.frombuffer(call.to_text().encode(), np.int8)
            with backend.use(own):
                field = trt.PluginField(FIELD, self.text, trt.PluginFieldType.CHAR)
                self.fields = trt.PluginFieldCollection([field])

        def get_capability_interface(self, type: Any) -> Any:
            del type
            return self

        def clone(self) -> Any:
            return Plugin(self.call, self.run, self.building)

        # -- the builder's questions -------------------------------------------------------------

        def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
            del input_types
            with backend.use(own):
                return [to_trt(dtype) for dtype in self.results]

        def get_output_shapes(
            self, inputs: Sequence[Any], shape_inputs: Sequence[Any], expr_builder: Any
        ) -> list[Any]:
            del shape_inputs
            with backend.use(own):
                return [
                    trt.DimsExprs([to_dimension(s, inputs, expr_builder) for s in output.sizes])
                    for output in self.call.outputs
                ]

        def supports_format_combination(
            self, pos: int, in_out: Sequence[Any], num_inputs: int
        ) -> bool:
            desc = in_out[pos].desc
            types = [*self.call.inputs, *self.results]
            with backend.use(own):
                known = num_inputs == len(self.call.inputs) and pos < len(types)
                is_linear = desc.format == trt.TensorFormat.LINEAR
                return bool(known and is_linear and desc.type == to_trt(types[pos]))

        def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            del inputs, outputs

        # -- at run time -------------------------------------------------------------------------

        def get_fields_to_serialize(self) -> Any:
            return self.fields

        def attach_to_context(self, resource_context: Any) -> Any:
            del resource_context
            return self.clone()

        def set_tactic(self, tactic: int) -> None:
            del tactic

        def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            del inputs, outputs

        def enqueue(
            self,
            input_desc: Sequence[Any],
            output_desc: Sequence[Any],
            inputs: Sequence[int],
            outputs: Sequence[int],
            workspace: int,
            stream: int,
        ) -> None:
            del workspace
            # An exception makes the enqueue of TensorRT fail, which cannot say what it was.
            try:
                with ExitStack() as stack:
                    device = _device(stream, stack)
                    given = _tensors(input_desc, self.call.inputs, inputs, device)
                    if self.building:
                        given = [_harmless(x) for x in given]
                    self.run(given, _tensors(output_desc, self.results, outputs, device))
            except Exception as error:
                backend.note_error(f"the plugin {self.call.operator} failed: {error}")
                raise

    return Plugin


def _device(stream: int, stack: ExitStack) -> torch.device:
    """Return where TensorRT's addresses are, and compute there on its stream."""
    if not _has_gpu():
        return torch.device("cpu")  # no TensorRT is at work, but a test
    device = torch.device("cuda", torch.cuda.current_device())
    # An external stream of address 0 would be a new one, not CUDA's default.
    own: torch.cuda.Stream = (
        torch.cuda.ExternalStream(stream, device=device)  # type: ignore[no-untyped-call]
        if stream
        else torch.cuda.default_stream(device)
    )
    stack.enter_context(torch.cuda.stream(own))
    return device


# Without one, to ask again takes as long as the first time: most of a millisecond.
_has_gpu = functools.cache(torch.cuda.is_available)


def _tensors(
    descriptions: Sequence[Any],
    dtypes: Sequence[torch.dtype],
    addresses: Sequence[int],
    device: torch.device,
) -> list[torch.Tensor]:
    """Return what lies at addresses; the types are those of the only combination that is taken."""
    return [
        tensor_at(address, dtype, tuple(desc.dims), device)
        for desc, dtype, address in zip(descriptions, dtypes, addresses, strict=True)
    ]


def _harmless(x: torch.Tensor) -> torch.Tensor:
    """Return zeros for integers, which may be indices: builders time plugins on any numbers."""
    return x if x.is_floating_point() or x.dtype == torch.bool else torch.zeros_like(x)
