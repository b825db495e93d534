"""Several plans of one network in one module: which one runs where, and that they belong together.

GPUs are pretended: a plan loads where it was built for the GPU's compute capability.
"""

import copy
import io

import pytest
import torch
from torch import nn

import t2t
from t2t.cli.converted import facts_shown
from t2t.errors import CheckpointError, ConversionError, EngineError
from t2t.runtime import Execution
from tests.engines import StandInEngine

X = torch.rand(2, 4)
DEVICES = {index: torch.device("cuda", index) for index in range(4)}
CAPABILITIES = [(8, 9), (12, 0), (9, 0), (8, 6)]


def made(seed=0, size=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(size, 3), nn.ReLU()).eval()


def convert(capability, model=None, inputs=X, **options):
    return t2t.convert(model or made(), [inputs], compute_capabilities=[capability], **options)


def joined():
    module = convert("8.9")
    module.add_plan(convert("12.0"))
    module.add_plan(convert("8.6"))
    return module


def test_each_gpu_gets_its_own_plan(monkeypatch):
    module = joined()
    engines = [module.engine, *module.engine.others]
    assert [x.compute_capabilities for x in engines] == [("8.9",), ("12.0",), ("8.6",)]
    tried = []

    def try_own(engine, device, _budget, _cache):
        tried.append(engine.compute_capabilities[0])
        fits = tried[-1] == ".".join(map(str, CAPABILITIES[device.index]))
        return Execution(StandInEngine([], [], dict), torch.device("cpu")) if fits else tried[-1]

    monkeypatch.setattr("t2t.runtime.engine.Engine._try_own", try_own)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: CAPABILITIES[d.index])
    for index, wanted in ((0, ["8.9"]), (1, ["12.0"]), (3, ["8.6"]), (1, [])):
        tried.clear()
        assert module.engine.why_not(DEVICES[index]) is None
        assert tried == wanted
    assert module.engine.why_not(DEVICES[2]) == "8.9; 12.0; 8.6"
    module.release()
    tried.clear()
    assert copy.deepcopy(module).engine.why_not(DEVICES[3]) is None
    assert tried == ["8.6"]


def test_a_checkpoint_has_all_plans():
    module = joined()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded = t2t.TRTModule()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    pairs = zip(
        (module.engine, *module.engine.others), (loaded.engine, *loaded.engine.others), strict=True
    )
    for before, after in pairs:
        assert torch.equal(before.plan, after.plan)
        assert before.compute_capabilities == after.compute_capabilities
    text = str(loaded)
    assert "for compute capability 8.9" in text
    assert "another engine: Engine(" in text
    assert "for compute capability 12.0)" in text
    facts = [text for name, text in facts_shown(loaded) if name == "another"]
    assert [text[-6:] for text in facts] == [" 12.0)", "y 8.6)"]
    damaged = loaded.state_dict()
    damaged["plans.2"] = damaged["plans.2"].clone()
    damaged["plans.2"][100] ^= 1
    with pytest.raises(CheckpointError, match=r"'plans\.2'"):
        t2t.TRTModule().load_state_dict(damaged)
    del damaged["plans.2"]
    with pytest.raises(CheckpointError, match=r"'plans\.2' is missing"):
        loaded.load_state_dict(damaged)
    assert len(loaded.engine.others) == 2


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
@pytest.mark.parametrize(
    ("other", "error", "words"),
    [
        (lambda: convert("12.0", made(1)), ConversionError, "'weights' of .* are not the same"),
        (lambda: convert("12.0", made(0)[:1]), ConversionError, "networks are not the same"),
        (lambda: convert("12.0", made(0, 5), torch.rand(2, 5)), ConversionError, "not the same"),
        (lambda: convert("12.0", made(0, 4), torch.rand(3, 4)), ConversionError, "not the same"),
        (lambda: convert("8.9"), EngineError, "there already"),
        (lambda: convert("12.0", keep_program=False), EngineError, "keep_program=True"),
        (t2t.TRTModule, EngineError, "empty"),
        (made, EngineError, "a converted module is needed, not a Sequential"),
        (
            lambda: convert(
                "12.0", partial=True, torch_executed_ops=["aten::relu"], min_block_size=1
            ),
            EngineError,
            "neither partial",
        ),
    ],
)
def test_what_does_not_belong_together_changes_nothing(other, error, words):
    module = convert("8.9")
    with pytest.raises(error, match=words):
        module.add_plan(other())
    assert module.engine.others == ()
    assert "plans" not in module.details
    torch.testing.assert_close(module(X), made()(X))


def test_several_plans_are_not_refitted_at_once():
    with pytest.raises(EngineError, match="refit each"):
        t2t.refit(joined(), made(1), [X])
