"""Quantization-aware training: when it begins, what it keeps, and how it goes on."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.recipes.digits import MLP, accuracy, rows, trainer_for
from tests.recipes.pruning.runs import Chain, Mixed, Training, merged, pictures_batch, sparsity, tokens_batch
from trainwright import TrainerCallback
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.recipes.pruning.thinning import LayerThinningModifier
from trainwright.recipes.quantization.modifier import QuantizationModifier
from trainwright.recipes.scheduling.epochs import EpochRangeModifier

CHANNELS: dict[str, Any] = {"num_bits": 8, "symmetric": True, "strategy": "channel"}
SCHEMES: dict[str, Any] = {
    "default": "default",
    "tensorrt": "tensorrt",
    "channels": {"weights": CHANNELS},
    "outputs": {"weights": CHANNELS, "output_activations": {"num_bits": 8}},
    "W8A8": "W8A8",
    "int2": {"input_activations": None, "weights": {"num_bits": 2, "symmetric": True, "strategy": "channel"}},
    "int4 asymmetric": {"input_activations": {"num_bits": 4}, "weights": {"num_bits": 4}},
    "FP8": "FP8",
    "FP8_DYNAMIC": "FP8_DYNAMIC",
}
MOMENTS = {"start_epoch": 0.75, "disable_quantization_observer_epoch": 2.0, "freeze_bn_stats_epoch": 2.5}


def same_tensors(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("build", [Mixed, Chain])
def test_a_stop_changes_nothing(scheme: str, build: Any) -> None:
    batches = tokens_batch if build is Mixed else pictures_batch

    def make() -> list[Modifier]:
        return [QuantizationModifier(scheme=SCHEMES[scheme], **MOMENTS)]

    whole = Training(make(), build=build, batches=batches).run(16)
    for stop in (2, 3, 5, 8, 9, 13):
        saved = Training(make(), build=build, batches=batches).run(stop).saved()
        parted = Training(make(), build=build, batches=batches, epoch=stop / 4, saved=saved).run(16)
        same_tensors(whole.model.state_dict(), parted.model.state_dict())
        same_tensors(whole.saved()["modifiers"][0]["tensors"], parted.saved()["modifiers"][0]["tensors"])
        same_tensors(dict(whole.model.named_buffers()), dict(parted.model.named_buffers()))


def test_nothing_changes_before_it_begins_and_names_never_do() -> None:
    plain = Training([]).run(3)
    quantized = Training([QuantizationModifier(start_epoch=1)]).run(3)
    same_tensors(plain.model.state_dict(), quantized.model.state_dict())
    assert [n for n, _ in plain.model.named_parameters()] == [n for n, _ in quantized.model.named_parameters()]
    quantized.run(8)
    plain.run(8)
    assert list(plain.model.state_dict()) == list(quantized.model.state_dict())
    Mixed().load_state_dict(quantized.model.state_dict())
    assert not torch.equal(plain.model.state_dict()["hidden.weight"], quantized.model.state_dict()["hidden.weight"])
    # Printed, it is the model it was; asked for its type too.
    assert type(quantized.model.hidden).__name__ == "Linear"
    assert isinstance(quantized.model.hidden, nn.Linear)


@pytest.mark.parametrize("scheme", ["default", "int2", "FP8", "int4 asymmetric"])
def test_pruned_zeros_stay_while_it_learns(scheme: str) -> None:
    pruning = MagnitudePruningModifier(
        init_sparsity=0.3, final_sparsity=0.75, start_epoch=0, end_epoch=2, update_frequency=0.5
    )
    quantization = QuantizationModifier(start_epoch=1, scheme=SCHEMES[scheme])
    training = Training([pruning, quantization])

    def watch(now: Training) -> None:
        for name, mask in pruning.masks.items():
            layer: Any = now.model.get_submodule(name.removesuffix(".weight"))
            assert not layer.weight[~mask].any()
            assert not layer.rounded_weight()[~mask].any()

    training.run(16, watch)
    training.drive.finish()
    assert sparsity(training.model.get_parameter("hidden.weight")) == 0.75


def test_observers_and_batch_norms_stop_when_told() -> None:
    modifier = QuantizationModifier(**merged(MOMENTS, {"scheme": {"weights": CHANNELS}}))
    training = Training([modifier], build=Chain, batches=pictures_batch).run(8)
    model: Any = training.model
    ranges = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith((".low", ".high"))}
    grids = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(".scale")}
    assert len(ranges) == 8
    assert len(grids) == 4
    training.run(10)
    norms = {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
    training.run(16)
    buffers = dict(model.named_buffers())
    for name, kept in {**ranges, **grids, **norms}.items():
        assert torch.equal(buffers[name], kept), name
    assert model.bn1.training
    assert modifier.final_epoch == 2.5


def test_a_layer_that_becomes_smaller_gets_a_grid_that_fits() -> None:
    gradual: dict[str, Any] = {"init_sparsity": 0.2, "final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 1}

    def make() -> list[Modifier]:
        structured = StructuredPruningModifier(**gradual, params=["conv1.weight", "hidden.weight"])
        moments = {"start_epoch": 0.5, "disable_quantization_observer_epoch": 1.0}
        quantization = QuantizationModifier(scheme={"weights": CHANNELS}, **moments)
        return [structured, LayerThinningModifier(start_epoch=1.25), quantization]

    whole = Training(make(), build=Chain, batches=pictures_batch).run(12)
    assert whole.model.get_submodule("conv1").out_channels == 4
    assert whole.model.get_buffer("conv1.weight_fake_quantizer.scale").numel() == 4
    saved = Training(make(), build=Chain, batches=pictures_batch).run(7).saved()
    parted = Training(make(), build=Chain, batches=pictures_batch, epoch=7 / 4, saved=saved).run(12)
    same_tensors(whole.model.state_dict(), parted.model.state_dict())
    same_tensors(dict(whole.model.named_buffers()), dict(parted.model.named_buffers()))


def test_ranges_move_until_then() -> None:
    training = Training([QuantizationModifier()]).run(1)
    before = training.model.get_buffer("hidden.input_fake_quantizer.high").clone()
    training.run(6)
    assert not torch.equal(training.model.get_buffer("hidden.input_fake_quantizer.high"), before)
    training.drive.finish()
    after = training.model.get_buffer("hidden.input_fake_quantizer.high").clone()
    training.model(tokens_batch(1)[0])
    assert torch.equal(training.model.get_buffer("hidden.input_fake_quantizer.high"), after)


def test_what_is_saved_is_what_the_last_update_saw() -> None:
    modifier = QuantizationModifier()
    training = Training([modifier]).run(3)
    saved = {name: tensor.clone() for name, tensor in modifier.tensors_to_save().items()}
    # A step that is under way: a checkpoint that is still being written must not see it.
    training.model(tokens_batch(77)[0])
    same_tensors(saved, modifier.tensors_to_save())


def test_preparing_twice_and_copies() -> None:
    modifier = QuantizationModifier()
    training = Training([modifier]).run(4)
    ranges = dict(training.model.named_buffers())
    modifier.prepare_model(training.model)
    same_tensors(ranges, dict(training.model.named_buffers()))
    tokens = tokens_batch(5)[0]
    training.model.eval()
    expected = training.model(tokens)
    assert torch.equal(copy.deepcopy(training.model)(tokens), expected)
    assert torch.equal(pickle.loads(pickle.dumps(training.model))(tokens), expected)  # noqa: S301


def test_a_new_run_begins_anew() -> None:
    modifier = QuantizationModifier()
    first = Training([modifier]).run(6)
    kept = {name: tensor.clone() for name, tensor in modifier.tensors_to_save().items()}
    modifier.forget()
    second = Training([modifier]).run(6)
    same_tensors(kept, modifier.tensors_to_save())
    same_tensors(first.model.state_dict(), second.model.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_number_formats(dtype: torch.dtype) -> None:
    training = Training([QuantizationModifier()], dtype=dtype).run(6)
    assert training.model(tokens_batch(0)[0]).dtype == dtype
    assert training.model.get_buffer("hidden.input_fake_quantizer.high").dtype == torch.float32


def test_under_autocast() -> None:
    training = Training([QuantizationModifier()]).run(2)
    with torch.autocast("cpu", torch.bfloat16):
        found = training.model(tokens_batch(0)[0])
    found.float().sum().backward()
    assert found.isfinite().all()


@pytest.mark.slow
def test_compiled_code_follows_the_switches() -> None:
    def losses(compiled: bool) -> list[float]:
        training = Training([QuantizationModifier(**MOMENTS)], build=Chain, batches=pictures_batch)
        training.drive.start()
        if compiled:
            training.model.compile(backend="eager")
        found: list[float] = []
        training.run(12, lambda now: found.append(float(now.model(pictures_batch(99)[0]).detach().sum())))
        return found

    assert losses(True) == losses(False)


@pytest.mark.full
def test_inductor_follows_too() -> None:
    training = Training([QuantizationModifier(start_epoch=0.5)], build=Chain, batches=pictures_batch)
    training.model.compile()
    training.run(4)
    assert training.model.get_buffer("hidden.input_fake_quantizer.high").isfinite()
    tuned, eager = training.model.eval()(pictures_batch(9)[0]), copy.deepcopy(training.model)
    eager._compiled_call_impl = None
    torch.testing.assert_close(tuned, eager(pictures_batch(9)[0]), rtol=0.05, atol=0.05)


class Scaled(nn.Embedding):
    def forward(self, input: Any) -> Any:
        return super().forward(input) * 3


class Odd(nn.Linear):
    def forward(self, input: Any) -> Any:
        return nn.functional.linear(input, self.weight * 2, self.bias)


def test_classes_derived_from_layers() -> None:
    model: Any = nn.Sequential(Scaled(5, 4), nn.Linear(4, 4), Odd(4, 2))
    modifier = QuantizationModifier(scheme=SCHEMES["int2"])
    with pytest.warns(TrainwrightWarning, match=r"2 is not quantized: Odd computes on its own"):
        modifier.prepare_model(model)
    modifier.advance(Site(model, None, 1.0), 0.0)
    found = model[0](torch.arange(5))
    assert torch.equal(found, model[0].rounded_weight() * 3)
    assert len(found[0].unique()) <= 4
    assert isinstance(model[0], Scaled)


def test_attention_of_torch_is_quantized_where_it_calls_its_layers() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    modifier = QuantizationModifier(scheme=SCHEMES["int2"])
    with pytest.warns(TrainwrightWarning, match="MultiheadAttention reads its weight"):
        modifier.prepare_model(model)
    values = torch.randn(2, 3, 8)
    model.eval()
    before = model(values)
    modifier.advance(Site(model, None, 1.0), 0.0)
    with torch.no_grad():
        assert not torch.allclose(before, model(values), atol=1e-3)


def test_gpt2s_layers() -> None:
    import transformers

    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    names = list(model.state_dict())
    tokens = torch.arange(8)[None]
    plain = model(tokens).logits
    scheme = {"input_activations": None, "weights": {"num_bits": 8, "symmetric": True, "strategy": "channel"}}
    modifier = QuantizationModifier(scheme=scheme, ignore=["lm_head", "Embedding"])
    modifier.prepare_model(model)
    assert torch.equal(model(tokens).logits, plain)
    modifier.advance(Site(model, None, 1.0), 0.0)
    layer: Any = model.get_submodule("transformer.h.0.attn.c_attn")
    assert type(layer).__name__ == "Conv1D"
    # One scale for each output, which are columns here.
    assert layer.weight_fake_quantizer.grid(layer.outputs_first())[0].numel() == 48
    torch.testing.assert_close(model(tokens).logits, plain, rtol=0.1, atol=0.02)
    assert not torch.equal(model(tokens).logits, plain)
    assert list(model.state_dict()) == names


def test_without_training() -> None:
    torch.manual_seed(0)
    model: Any = Chain().eval()
    pictures = [pictures_batch(step)[0] for step in range(5)]
    plain = model(pictures[0])
    modifier = QuantizationModifier(num_calibration_steps=3)
    seen: list[Any] = []
    modifier.calibrate(model, pictures, lambda batch: seen.append(model(batch)))
    assert len(seen) == 3
    assert torch.equal(model.bn1.running_mean, torch.zeros(8))
    torch.testing.assert_close(model(pictures[0]), plain, rtol=0.1, atol=0.05)
    assert not torch.equal(model(pictures[0]), plain)
    other = QuantizationModifier()
    fresh = Chain().eval()
    fresh.load_state_dict(model.state_dict())
    other.prepare_model(fresh)
    other.load_state_dict(modifier.state_dict())
    assert torch.equal(fresh(pictures[1]), model(pictures[1]))
    with pytest.raises(ValueError, match="no batch"):
        QuantizationModifier().calibrate(Chain(), [])


# ---- in a Trainer


class Stop(TrainerCallback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.at:
            control.should_save = control.should_training_stop = True


RECIPE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
quantization_modifiers:
  - !QuantizationModifier {start_epoch: 1.0, disable_quantization_observer_epoch: 2.0}
"""


@pytest.mark.slow
def test_a_trainer_goes_on_bit_for_bit_and_saves_a_plain_model(tmp_path: Path) -> None:
    def run(folder: str, callbacks: list[Any], **options: Any) -> Any:
        torch.manual_seed(0)
        args = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 32}
        model = MLP(16)
        trainer = trainer_for(model, tmp_path / folder, 0, 3, recipe=RECIPE, callbacks=callbacks, args=args)
        trainer.train(**options)
        return trainer

    whole = run("whole", [])
    run("parts", [Stop(30)])
    resumed = run("parts", [], resume_from_checkpoint=True)
    same_tensors(whole.model.state_dict(), resumed.model.state_dict())
    same_tensors(dict(whole.model.named_buffers()), dict(resumed.model.named_buffers()))
    whole.save_model(str(tmp_path / "saved"))
    from safetensors.torch import load_file

    MLP(16).load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))


def test_a_step_that_is_left_out_moves_no_range(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MLP(16)
    recipe = [EpochRangeModifier(start_epoch=0, end_epoch=1), QuantizationModifier(start_epoch=0.25)]
    trainer = trainer_for(model, tmp_path, 0, 1, recipe=recipe)
    clean, _ = rows(0)
    trainer.train_dataset = [
        {**row, "pixels": row["pixels"] * (float("nan") if number == 700 else 1)} for number, row in enumerate(clean)
    ]
    trainer.train()
    assert trainer.state.global_step == 43
    found = [buffer for _, buffer in model.named_buffers()]
    assert len(found) == 6
    assert all(bool(buffer.isfinite()) for buffer in found)


@pytest.mark.slow
def test_two_bits_learn_what_rounding_forgets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MLP(128)
    trainer = trainer_for(model, tmp_path / "dense", 0, 10)
    trainer.train()
    dense = accuracy(trainer)
    results = {}
    for bits, least in ((8, 0.99), (2, 0.97)):
        scheme = {"input_activations": None, "weights": {"num_bits": bits, "symmetric": True, "strategy": "channel"}}
        student = copy.deepcopy(model)
        learner = trainer_for(student, tmp_path / str(bits), 0, 5, recipe=[QuantizationModifier(scheme=scheme)])
        learner.train()
        results[bits] = accuracy(learner)
        assert results[bits] >= least * dense
    rounded = copy.deepcopy(model)
    modifier = QuantizationModifier(scheme={"input_activations": None, "weights": {"num_bits": 2, "symmetric": True}})
    modifier.prepare_model(rounded)
    modifier.advance(Site(rounded, None, 1.0), 0.0)
    assert results[2] > accuracy(trainer_for(rounded, tmp_path / "rounded", 0, 1))
