"""timm: a small model of each of its modules, and those variants that go other ways."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from zoo.case import Case, images

__all__ = ["cases"]

# Module: models.
MODELS = {
    "beit": "beit_base_patch16_224",
    "byoanet": "halonet_h1 eca_botnext26ts_256 lambda_resnet26t",
    "byobnet": "test_byobnet mobileone_s1 gernet_s repvgg_a0",
    "cait": "cait_xxs24_224",
    "coat": "coat_tiny coat_lite_tiny",
    "convit": "convit_tiny",
    "convmixer": "convmixer_768_32",
    "convnext": "test_convnext convnext_atto convnextv2_atto",
    "cpubone": "cpubone_nano",
    "crossvit": "crossvit_tiny_240",
    "csatv2": "csatv2",
    "cspnet": "cs3darknet_focus_s cspresnet50",
    "cspnext": "cspnext_tiny",
    "davit": "davit_tiny",
    "deepseek_vit": "deepseek_vit_412m",
    "deit": "deit_tiny_patch16_224 deit_tiny_distilled_patch16_224",
    "densenet": "densenet121 densenetblur121d",
    "dla": "dla46x_c",
    "dpn": "dpn48b",
    "edgenext": "edgenext_xx_small",
    "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0",
    "efficientnet": "test_efficientnet test_efficientnet_gn test_efficientnet_ln "
    "tf_efficientnet_b0 mixnet_s mobilenetv2_050",
    "efficientvim": "efficientvim_m1",
    "efficientvit_mit": "efficientvit_b0",
    "efficientvit_msra": "efficientvit_m0",
    "eva": "vit_tiny_patch16_dinov3_qkvb eva02_tiny_patch14_224",
    "fasternet": "fasternet_t0",
    "fastvit": "fastvit_t8",
    "focalnet": "focalnet_tiny_srf",
    "gcvit": "gcvit_xxtiny",
    "gemma4_vit": "gemma4_vit_167m",
    "ghostnet": "ghostnet_050 ghostnetv3_050",
    "hardcorenas": "hardcorenas_b",
    "hgnet": "hgnetv2_b0",
    "hiera": "hiera_tiny_224",
    "hieradet_sam2": "hieradet_small",
    "hrnet": "hrnet_w18_small",
    "iformer": "iformer_t",
    "inception_next": "inception_next_atto",
    "inception_resnet_v2": "inception_resnet_v2",
    "inception_v3": "inception_v3",
    "inception_v4": "inception_v4",
    "lcnetv2": "lcnetv2_small",
    "levit": "levit_128s levit_conv_128s",
    "lowformer": "lowformer_b0",
    "mambaout": "test_mambaout",
    "maxxvit": "test_coatnet test_maxvit maxvit_pico_rw_256",
    "metaformer": "poolformer_s12 poolformerv2_s12",
    "mlp_mixer": "gmlp_ti16_224 gmixer_12_224 resmlp_12_224",
    "mobilenetv3": "mobilenetv3_small_050 lcnet_035 mobilenetv4_conv_small",
    "mobilenetv5": "mobilenetv5_base",
    "mobilevit": "mobilevit_xxs mobilevitv2_050",
    "mvitv2": "mvitv2_tiny",
    "naflexvit": "naflexvit_base_patch16_gap",
    "nasnet": "nasnetalarge",
    "nest": "nest_tiny",
    "nextvit": "nextvit_small",
    "nfnet": "test_nfnet nf_regnet_b0",
    "pit": "pit_ti_224",
    "pnasnet": "pnasnet5large",
    "pvt_v2": "pvt_v2_b0 pvt_v2_b2_li",
    "qwen3_vit": "qwen3_vit_88m",
    "rdnet": "rdnet_tiny",
    "regnet": "regnetx_002 regnety_002",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "res2net": "res2next50 res2net50_48w_2s",
    "resnest": "resnest14d",
    "resnet": "test_resnet resnet10t seresnext26d_32x4d ecaresnet26t resnetaa50 resnetblur50",
    "resnetv2": "resnetv2_18 resnetv2_50x1_bit",
    "rexnet": "rexnet_100",
    "selecsls": "selecsls42",
    "senet": "legacy_seresnet18",
    "sequencer": "sequencer2d_s",
    "shvit": "shvit_s1",
    "sknet": "skresnet18",
    "starnet": "starnet_s050",
    "swiftformer": "swiftformer_xs",
    "swin_transformer": "swin_tiny_patch4_window7_224 swin_s3_tiny_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256",
    "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
    "tiny_vit": "tiny_vit_5m_224",
    "tnt": "tnt_s_patch16_224",
    "tresnet": "tresnet_m",
    "twins": "twins_svt_small twins_pcpvt_small",
    "vgg": "vgg11",
    "visformer": "visformer_tiny",
    "vision_transformer": "test_vit test_vit2 test_vit3 test_vit4 vit_tiny_patch16_224",
    "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "vision_transformer_relpos": "vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224",
    "vision_transformer_sam": "samvit_base_patch16_224",
    "vitamin": "vitamin_small_224",
    "volo": "volo_d1_224",
    "vovnet": "ese_vovnet19b_slim vovnet39a",
    "xception": "legacy_xception",
    "xception_aligned": "xception41p xception41",
    "xcit": "xcit_nano_12_p16_224",
}
# Arguments that make a model small; sizes other than the model's own.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "deepseek_vit_412m": {"depth": 2},
    "gemma4_vit_167m": {"depth": 2},
    "qwen3_vit_88m": {"depth": 2},
    "mobilenetv5_base": {},
}
SIZES = {
    "halonet_h1": 256,
    "gemma4_vit_167m": 96,
    "qwen3_vit_88m": 96,
    "deepseek_vit_412m": 112,
    "csatv2": 128,
    "hieradet_small": 256,
    "naflexvit_base_patch16_gap": 224,
    "hrnet_w18_small": 96,
}
FP16 = ("test_vit", "test_convnext", "test_efficientnet", "test_maxvit", "test_resnet",
        "swin_tiny_patch4_window7_224", "levit_128s", "mobilevit_xxs", "xcit_nano_12_p16_224",
        "gmlp_ti16_224", "resnest14d", "efficientvit_b1", "eva02_tiny_patch14_224")  # fmt: skip
DYNAMIC = ("test_vit", "test_convnext", "test_efficientnet", "test_maxvit", "test_byobnet",
           "test_resnet", "swin_tiny_patch4_window7_224", "levit_128s", "mobilevit_xxs",
           "convit_tiny", "crossvit_tiny_240", "pit_ti_224", "resnest14d", "skresnet18",
           "xcit_nano_12_p16_224", "mvitv2_tiny", "coat_lite_tiny")  # fmt: skip
ANY_SIZE = ("test_resnet", "test_convnext", "test_efficientnet", "mobilevit_xxs", "pvt_v2_b0")


def cases() -> Iterator[Case]:
    """Yield the cases of timm."""
    for names in MODELS.values():
        for name in names.split():
            yield _case(name)
    for name in FP16:
        yield _case(name, " fp16", fp16=True)
    for name in DYNAMIC:
        yield _case(name, " dynamic batch", 5, options={"dynamic_shapes": [{0: (1, 8)}]})
    for name in ANY_SIZE:
        any_size = {"dynamic_shapes": [{0: (1, 4), 2: (64, 256), 3: (64, 256)}]}
        yield Case(f"timm/{name} dynamic size", functools.partial(_make, name),
                   images(2, 3, 96, 128, second=(3, 3, 160, 96)), any_size,
                   # Its patches must fit, else it resizes.
                   refused="decides on a size" if name == "mobilevit_xxs" else "")  # fmt: skip

    h, w = (torch.export.Dim(side, min=1, max=14) for side in "hw")
    for name, step, options in (
        ("mobilevit_xxs", 64, {}),
        ("vit_tiny_patch16_224", 16, {"dynamic_img_size": True}),
        ("vit_tiny_patch16_224", 16, {"dynamic_img_size": True, "reg_tokens": 2}),
    ):
        dims = {0: (1, 4), 2: step * h, 3: step * w}
        what = "".join(f" {key}" for key in options)
        yield Case(f"timm/{name}{what} multiples of {step}",
                   functools.partial(_make, name, **options),
                   images(2, 3, 128, 64, second=(3, 3, 64, 192)),
                   {"dynamic_shapes": [dims]})  # fmt: skip


def _case(name: str, suffix: str = "", second: int = 2, **more: Any) -> Case:
    def draw(generator: torch.Generator, run: int) -> Any:
        size = _size(name)
        return images(2, 3, size, size, second=(second, 3, size, size))(generator, run)

    return Case(f"timm/{name}{suffix}", functools.partial(_make, name), draw, **more)


def _size(name: str) -> int:
    import timm

    settings = timm.get_pretrained_cfg(name)
    own = settings.input_size[-1] if settings is not None else 224
    if name in SIZES:
        return SIZES[name]
    fixed = settings is not None and settings.fixed_input_size
    return own if fixed else min(own, 160)


def _make(name: str, **options: Any) -> torch.nn.Module:
    import timm

    model: torch.nn.Module = timm.create_model(name, **ARGUMENTS.get(name, {}), **options)
    return model.eval()
