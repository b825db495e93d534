"""transformers: one tiny model of each of many families, made from its configuration class."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from zoo.case import Case, Inputs, images, tokens

__all__ = ["cases"]

WORDS = 99
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
PATCHES = {**SMALL, "image_size": 32, "patch_size": 8}
del PATCHES["vocab_size"]
SEQ2SEQ = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "use_cache": False,
}
STAGES = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}

# Family: (model, configuration, its arguments). Inputs: ids and mask.
TEXT = {
    "bert": ("BertModel", "BertConfig", SMALL),
    "bert qa": ("BertForQuestionAnswering", "BertConfig", SMALL),
    "bert mlm": ("BertForMaskedLM", "BertConfig", SMALL),
    "bert eager": ("BertModel", "BertConfig", {**SMALL, "attn_implementation": "eager"}),
    "roberta": ("RobertaModel", "RobertaConfig", SMALL),
    "xlm-roberta": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig", SMALL),
    "electra": ("ElectraModel", "ElectraConfig", {**SMALL, "embedding_size": 16}),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40},
    ),
    "albert": ("AlbertModel", "AlbertConfig", {**SMALL, "embedding_size": 16}),
    "deberta": ("DebertaModel", "DebertaConfig", {**SMALL, "relative_attention": True}),
    "deberta-v2": (
        "DebertaV2Model",
        "DebertaV2Config",
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    "mpnet": ("MPNetModel", "MPNetConfig", SMALL),
    "camembert": ("CamembertModel", "CamembertConfig", SMALL),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        {**SMALL, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    ),
    "nomic-bert": ("NomicBertModel", "NomicBertConfig", SMALL),
    "funnel": (
        "FunnelModel",
        "FunnelConfig",
        {"vocab_size": WORDS, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 40,
         "block_sizes": [1, 1], "num_decoder_layers": 1},
    ),
    "squeezebert": ("SqueezeBertModel", "SqueezeBertConfig", {**SMALL, "embedding_size": 32}),
    "mobilebert": (
        "MobileBertModel",
        "MobileBertConfig",
        {**SMALL, "embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32},
    ),
    "convbert": ("ConvBertModel", "ConvBertConfig", {**SMALL, "embedding_size": 32}),
    "fnet": ("FNetModel", "FNetConfig", SMALL),
    "xlnet": (
        "XLNetModel",
        "XLNetConfig",
        {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40,
         "use_mems_eval": False},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
    ),
    "gpt-neo": (
        "GPTNeoModel",
        "GPTNeoConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
         "attention_types": [[["global", "local"], 1]], "window_size": 4, "use_cache": False},
    ),
    "gpt-neox": ("GPTNeoXModel", "GPTNeoXConfig", {**SMALL, "use_cache": False}),
    "gptj": (
        "GPTJModel",
        "GPTJConfig",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
         "use_cache": False},
    ),
    "opt": (
        "OPTModel",
        "OPTConfig",
        {**SMALL, "ffn_dim": 40, "word_embed_proj_dim": 32, "use_cache": False},
    ),
    "bloom": (
        "BloomModel",
        "BloomConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
    ),
    "falcon": ("FalconModel", "FalconConfig", {**SMALL, "use_cache": False}),
    "mpt": (
        "MptModel",
        "MptConfig",
        {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "use_cache": False,
         "max_seq_len": 64},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "llama eager": ("LlamaForCausalLM", "LlamaConfig", {**DECODER, "attn_implementation": "eager"}),
    "mistral": ("MistralModel", "MistralConfig", {**DECODER, "sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 8}),
    "qwen2-moe": (
        "Qwen2MoeModel",
        "Qwen2MoeConfig",
        {**DECODER, "num_experts": 4, "moe_intermediate_size": 16,
         "shared_expert_intermediate_size": 16},
    ),
    "mixtral": ("MixtralModel", "MixtralConfig", {**DECODER, "num_local_experts": 4}),
    "gemma": ("GemmaModel", "GemmaConfig", {**DECODER, "head_dim": 8}),
    "gemma2": ("Gemma2Model", "Gemma2Config", {**DECODER, "head_dim": 8, "sliding_window": 5}),
    "gemma3": ("Gemma3TextModel", "Gemma3TextConfig", {**DECODER, "head_dim": 8}),
    "phi": ("PhiModel", "PhiConfig", DECODER),
    "phi3": ("Phi3Model", "Phi3Config", DECODER),
    "olmo2": ("Olmo2Model", "Olmo2Config", DECODER),
    "cohere": ("CohereModel", "CohereConfig", DECODER),
    "granite": ("GraniteModel", "GraniteConfig", DECODER),
    "stablelm": ("StableLmModel", "StableLmConfig", DECODER),
    "starcoder2": ("Starcoder2Model", "Starcoder2Config", DECODER),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", DECODER),
    "mamba": (
        "MambaModel",
        "MambaConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8,
         "use_cache": False},
    ),
    "rwkv": (
        "RwkvModel",
        "RwkvConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False},
    ),
    "clip text": ("CLIPTextModel", "CLIPTextConfig", {**SMALL, "eos_token_id": 98}),
    "siglip text": ("SiglipTextModel", "SiglipTextConfig", SMALL),
    "t5 encoder": (
        "T5EncoderModel",
        "T5Config",
        {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2,
         "num_heads": 4},
    ),
}  # fmt: skip
# With decoder_input_ids besides.
TWO_PARTS = {
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2,
         "num_heads": 4, "use_cache": False},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ),
    "marian": ("MarianMTModel", "MarianConfig", {**SEQ2SEQ, "pad_token_id": 0}),
    "m2m100": ("M2M100ForConditionalGeneration", "M2M100Config", SEQ2SEQ),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SEQ2SEQ),
}  # fmt: skip
# Pictures of 32 or 64 pixels a side.
PICTURES = {
    "vit": ("ViTModel", "ViTConfig", PATCHES),
    "deit": ("DeiTModel", "DeiTConfig", PATCHES),
    "beit": ("BeitModel", "BeitConfig", {**PATCHES, "use_relative_position_bias": True}),
    "dinov2": ("Dinov2Model", "Dinov2Config", {**PATCHES, "mlp_ratio": 2}),
    "clip vision": ("CLIPVisionModel", "CLIPVisionConfig", PATCHES),
    "siglip vision": ("SiglipVisionModel", "SiglipVisionConfig", PATCHES),
    "yolos": ("YolosModel", "YolosConfig", {**PATCHES, "image_size": [64, 64],
              "num_detection_tokens": 4}),
    "swin": ("SwinModel", "SwinConfig", {**STAGES, "image_size": 64, "patch_size": 4}),
    "swinv2": ("Swinv2Model", "Swinv2Config", {**STAGES, "image_size": 64, "patch_size": 4}),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32,
         "num_attention_heads": [1, 1, 2, 2]},
    ),
    "dpt": (
        "DPTForDepthEstimation",
        "DPTConfig",
        {**PATCHES, "image_size": 64, "patch_size": 16, "num_hidden_layers": 4,
         "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16],
         "fusion_hidden_size": 16, "is_hybrid": False},
    ),
    "convnext": ("ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 8, 16, 16],
                 "depths": [1, 1, 1, 1]}),
    "resnet": ("ResNetModel", "ResNetConfig", {"embedding_size": 8,
               "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}),
    "mobilevit": ("MobileViTModel", "MobileViTConfig", {"image_size": 64}),
    "poolformer": ("PoolFormerModel", "PoolFormerConfig", {"hidden_sizes": [8, 8, 16, 16],
                   "depths": [1, 1, 1, 1]}),
    "upernet": ("UperNetForSemanticSegmentation", "UperNetConfig", None),
}  # fmt: skip
DYNAMIC = (
    "bert", "bert eager", "roberta", "distilbert", "albert", "deberta-v2", "gpt2", "llama", "qwen3",
    "gemma2", "mistral", "modernbert", "t5 encoder", "mpnet", "bloom", "opt",
)  # fmt: skip
FP16 = ("bert", "gpt2", "llama", "qwen3", "olmo2", "vit", "swin", "t5 encoder", "gemma2")


def cases() -> Iterator[Case]:
    """Yield the cases of transformers."""
    draw = tokens(WORDS)
    for name in TEXT:
        # FNet's Fourier transform has complex numbers, which TensorRT has not.
        yield _case(name, TEXT[name], draw, refused="complex numbers" if name == "fnet" else "")
    for name, model in TWO_PARTS.items():
        yield _case(name, model, tokens(WORDS, decoder_input_ids=_decoder_ids))
    for name, model in PICTURES.items():
        yield _case(name, model, _pixels(name))
    for name in DYNAMIC:
        dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("n", min=2, max=32)}
        both = {"dynamic_shapes": {"input_ids": dims, "attention_mask": dims}}
        longer = tokens(WORDS, second=(3, 20))
        yield _case(f"{name} dynamic", TEXT[name], longer, options=both)
    for name in FP16:
        model = {**TEXT, **PICTURES}[name]
        given = draw if name in TEXT else _pixels(name)
        yield _case(f"{name} fp16", model, given, fp16=True)
    yield _case("wav2vec2", ("Wav2Vec2Model", "Wav2Vec2Config", _SPEECH), images(2, 2000))
    yield _case("hubert", ("HubertModel", "HubertConfig", _SPEECH), images(2, 2000))
    yield _case("whisper", ("WhisperModel", "WhisperConfig", _WHISPER), _whisper)
    yield _case("clip", ("CLIPModel", "CLIPConfig", _CLIP), _clip)


_SPEECH = {
    **SMALL, "conv_dim": [16, 16, 16], "conv_stride": [5, 4, 4], "conv_kernel": [10, 8, 4],
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_WHISPER = {
    **SEQ2SEQ, "num_mel_bins": 20, "max_source_positions": 30, "max_target_positions": 20,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_CLIP = {
    "text_config": {**SMALL, "eos_token_id": 98}, "vision_config": PATCHES, "projection_dim": 16,
}  # fmt: skip


def _case(name: str, model: Any, draw: Any, **more: Any) -> Case:
    return Case(f"transformers/{name}", functools.partial(_make, *model), draw, **more)


def _make(model: str, config: str, arguments: dict[str, Any] | None) -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    if arguments is None:
        resnet = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        )  # fmt: skip
        arguments = {"backbone_config": resnet, "hidden_size": 16, "auxiliary_in_channels": 16}
    made = getattr(transformers, config)(**arguments)
    return getattr(transformers, model)._from_config(made).eval()  # type: ignore[no-any-return]


def _pixels(name: str) -> Any:
    size = 32 if name in ("vit", "deit", "beit", "dinov2", "clip vision", "siglip vision") else 64
    return images(2, 3, size, size)


def _decoder_ids(generator: torch.Generator, batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, length - 5), generator=generator)


def _whisper(generator: torch.Generator, run: int) -> Inputs:
    del run
    features = torch.randn(2, 20, 60, generator=generator)
    return (), {"input_features": features, "decoder_input_ids": _decoder_ids(generator, 2, 12)}


def _clip(generator: torch.Generator, run: int) -> Inputs:
    _, text = tokens(WORDS)(generator, run)
    text["input_ids"][:, -4] = 98
    return (), {**text, "pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
