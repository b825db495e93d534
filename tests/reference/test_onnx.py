"""A sample of ONNX's own cases; `make conformance` runs all of them."""

import functools

import pytest

onnx = pytest.importorskip("onnx")

from t2t import backend  # noqa: E402  only where onnx is installed
from tools.onnx_cases import load_cases, run_case  # noqa: E402
from tools.onnx_reasons import explain  # noqa: E402

SAMPLE = """
attention_3d_with_past_and_present_expanded attention_4d_attn_mask_bool attention_4d_gqa_causal
averagepool_2d_ceil averagepool_2d_pads_count_include_pad averagepool_3d_default
basic_conv_with_padding cast_FLOAT_to_BFLOAT16 cast_FLOAT_to_FLOAT8E4M3FN cast_FLOAT_to_INT4
conv_with_autopad_same conv_with_strides_and_asymmetric_padding convtranspose
convtranspose_dilations convtranspose_output_shape cumsum_1d_reverse_exclusive cumsum_2d_axis_0
dequantizelinear_e4m3fn einsum_batch_diagonal einsum_inner_prod gather_1 gather_negative_indices
gathernd_example_int32_batch_dim1 gridsample_bicubic gridsample_reflection_padding
gridsample_volumetric_nearest_align_corners_0 gru_defaults gru_seq_length if
instancenorm_epsilon loop11 lrn lstm_defaults lstm_with_peepholes maxpool_2d_same_upper
maxpool_3d_default mod_mixed_sign_float32 mod_mixed_sign_int32 nonmaxsuppression_suppress_by_IOU
nonmaxsuppression_two_batches quantizelinear_e4m3fn
resize_downsample_sizes_linear_pytorch_half_pixel resize_downsample_sizes_nearest
resize_upsample_sizes_cubic resize_upsample_sizes_nearest_ceil_half_pixel reversesequence_batch
rotary_embedding_interleaved scan9_sum scatter_elements_with_negative_indices scatternd
slice_neg_steps slice_start_out_of_bounds tensorscatter top_k_same_values top_k_smallest
tril_square
"""
REASONS = [
    ("test_triu", "another default"),
    ("test_attention_local_window", "drops an attribute"),
    ("test_attention_4d_gqa_causal_nonpad_decode", "drops an input"),
    ("test_maxpool_2d_ceil_output_size_reduce_by_one", "own rule"),
    ("test_nonmaxsuppression_two_classes", "own order"),
    ("test_quantizelinear", "changes a type"),
]


@functools.cache
def cases():
    return {case.name: case for case in load_cases()}


@pytest.mark.parametrize("name", SAMPLE.split())
def test_case(name):
    outcome = run_case(cases()[f"test_{name}"], "")
    assert outcome.parsed, backend.error_text()
    assert outcome.problem == ""


@pytest.mark.parametrize(("name", "reason"), REASONS, ids=[row[0] for row in REASONS])
def test_a_case_that_does_not_agree_has_its_reason(name, reason):
    assert run_case(cases()[name], "").problem
    found, evidence = explain(cases()[name])
    assert reason in found
    assert evidence
