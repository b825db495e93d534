"""ResNet-50 written by hand with the TensorRT API: what memory and time a converter competes with.

A batch norm is one scale layer and the weights are PyTorch's own memory, as a careful author would
write it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from t2t import backend
from t2t.backend import trt


def _array(weights: torch.Tensor) -> Any:
    return weights.detach().numpy()


def _convolution(network: Any, x: Any, module: nn.Conv2d) -> Any:
    layer = network.add_convolution_nd(
        x, module.out_channels, module.kernel_size, _array(module.weight)
    )
    layer.stride_nd = module.stride
    layer.padding_nd = module.padding
    return layer.get_output(0)


def _batch_norm(network: Any, x: Any, module: nn.BatchNorm2d) -> Any:
    assert module.running_mean is not None
    assert module.running_var is not None
    scale = module.weight / torch.sqrt(module.running_var + module.eps)
    shift = module.bias - module.running_mean * scale
    power = np.ones(module.num_features, np.float32)
    layer = network.add_scale_nd(
        x, trt.ScaleMode.CHANNEL, _array(shift), _array(scale), power, channel_axis=1
    )
    return layer.get_output(0)


def _relu(network: Any, x: Any) -> Any:
    return network.add_activation(x, trt.ActivationType.RELU).get_output(0)


def _bottleneck(network: Any, x: Any, block: Bottleneck) -> Any:
    y = _relu(network, _batch_norm(network, _convolution(network, x, block.conv1), block.bn1))
    y = _relu(network, _batch_norm(network, _convolution(network, y, block.conv2), block.bn2))
    y = _batch_norm(network, _convolution(network, y, block.conv3), block.bn3)
    if block.downsample is not None:
        convolution, norm = block.downsample
        x = _batch_norm(network, _convolution(network, x, convolution), norm)
    y = network.add_elementwise(y, x, trt.ElementWiseOperation.SUM).get_output(0)
    return _relu(network, y)


def _head(network: Any, x: Any, module: nn.Linear) -> Any:
    mean = network.add_reduce(x, trt.ReduceOperation.AVG, axes=0b1100, keep_dims=False)
    weight = network.add_constant(tuple(module.weight.shape), _array(module.weight))
    bias = network.add_constant((1, module.out_features), _array(module.bias))
    product = network.add_matrix_multiply(
        mean.get_output(0),
        trt.MatrixOperation.NONE,
        weight.get_output(0),
        trt.MatrixOperation.TRANSPOSE,
    )
    return network.add_elementwise(
        product.get_output(0), bias.get_output(0), trt.ElementWiseOperation.SUM
    ).get_output(0)


def resnet(builder: Any, model: ResNet) -> Any:
    """Return the network of a torchvision ResNet of bottlenecks for an input (1, 3, 224, 224)."""
    network = backend.create_network(builder)
    x = network.add_input("x", trt.DataType.FLOAT, (1, 3, 224, 224))
    x = _relu(network, _batch_norm(network, _convolution(network, x, model.conv1), model.bn1))
    pool = network.add_pooling_nd(x, trt.PoolingType.MAX, (3, 3))
    pool.stride_nd, pool.padding_nd = (2, 2), (1, 1)
    x = pool.get_output(0)
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in stage:
            x = _bottleneck(network, x, block)
    network.mark_output(_head(network, x, model.fc))
    return network


def plan(model: ResNet) -> Any:
    """Build the engine of a ResNet by hand."""
    builder = trt.Builder(backend.logger())
    network = resnet(builder, model)
    return builder.build_serialized_network(network, builder.create_builder_config())
