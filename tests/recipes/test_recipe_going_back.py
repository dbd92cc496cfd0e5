"""Recipes and ways back: rewinds after steps that are not finite, and the best model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recipes.digits import MLP, trainer_for
from trainwright import TrainerCallback
from trainwright.core.modifier import Modifier
from trainwright.recipes.pruning.layers import LayerPruningModifier
from trainwright.recipes.pruning.obs import OBSPruningModifier
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.recipes.pruning.thinning import LayerThinningModifier
from trainwright.recipes.scheduling.parameters import TrainableParamsModifier

#: 43 steps an epoch: what begins at 0.6 begins with step 26.
SAVED = {"save_strategy": "steps", "save_steps": 10, "save_total_limit": None}
REWINDS = {**SAVED, "rewind_on_nonfinite": True, "max_nonfinite_steps": 1}


class Failing(nn.Module):
    """Gives NaN in one of its training forwards."""

    def __init__(self, fails_at: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = MLP(16)
        self.calls, self.fails_at = 0, fails_at

    def forward(self, pixels: Tensor) -> Tensor:
        # Tracing calls this too, with something that is no tensor.
        self.calls += self.training and isinstance(pixels, Tensor)
        answer = self.net(pixels)
        return answer * float("nan") if self.training and self.calls == self.fails_at else answer


def thinning() -> list[Modifier]:
    inner = ["net.layers.1.weight", "net.layers.3.weight"]
    filters = StructuredPruningModifier(
        init_sparsity=0.2, final_sparsity=0.5, start_epoch=0.1, end_epoch=0.5, update_frequency=0.1, params=inner
    )
    return [filters, LayerThinningModifier(start_epoch=0.6)]


class Watch(TrainerCallback):
    """What ``look`` says after each step; after a rewind again."""

    def __init__(self, look: Any) -> None:
        self.look, self.seen = look, []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append((state.global_step, self.look(kwargs["model"])))


def test_a_rewind_goes_back_to_before_layers_were_made_smaller(tmp_path: Path) -> None:
    watch = Watch(lambda model: model.net.layers[1].out_features)
    model = Failing(fails_at=28)
    trainer = trainer_for(model, tmp_path, 0, 1, args=REWINDS, recipe=thinning(), callbacks=[watch])
    trainer.train()
    assert (28, 8) in watch.seen[:28]
    assert watch.seen[28:30] == [(21, 16), (22, 16)]
    assert watch.seen[-1][1] == 8
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_a_rewind_unfreezes_what_is_not_yet_frozen(tmp_path: Path) -> None:
    frozen = TrainableParamsModifier(params=["net.layers.1.weight"], trainable=False, start_epoch=0.6)
    watch = Watch(lambda model: model.net.layers[1].weight.detach().clone())
    trainer_for(Failing(fails_at=28), tmp_path, 0, 1, args=REWINDS, recipe=[frozen], callbacks=[watch]).train()
    again = [weight for step, weight in watch.seen[28:] if step <= 25]
    assert len(again) == 5
    assert not any(torch.equal(one, next_one) for one, next_one in pairwise(again))


def test_a_rewind_brings_a_bypassed_layer_back(tmp_path: Path) -> None:
    bypass = LayerPruningModifier(layers=["net.layers.3"], start_epoch=0.6, end_epoch=1)
    probe = torch.linspace(0, 1, 32).view(2, 16)
    watch = Watch(lambda model: torch.equal(model.net.layers[3](probe), probe))
    trainer_for(Failing(fails_at=28), tmp_path, 0, 1, args=REWINDS, recipe=[bypass], callbacks=[watch]).train()
    assert [is_out for step, is_out in watch.seen[28:] if step <= 25] == [False] * 5
    assert (30, True) in watch.seen[28:]


def test_a_rewind_past_a_layer_that_is_gone_says_what_to_do(tmp_path: Path) -> None:
    recipe = [LayerPruningModifier(layers=["net.layers.3"], start_epoch=0.6)]
    trainer = trainer_for(Failing(fails_at=28), tmp_path, 0, 1, args=REWINDS, recipe=recipe)
    with pytest.raises(ValueError, match=r"checkpoint-20 was saved before LayerPruningModifier took net.layers.3.*out"):
        trainer.train()


def test_the_best_model_may_be_from_before_thinning_where_that_is_asked_for(tmp_path: Path) -> None:
    args = {**SAVED, "eval_strategy": "steps", "eval_steps": 10, "load_best_model_at_end": True}
    wanted = {**args, "metric_for_best_model": "eval_first", "greater_is_better": True, "best_model_after_epoch": 0.0}
    model = Failing()
    trainer = trainer_for(model, tmp_path, 0, 1, args=wanted, recipe=thinning())
    trainer.compute_metrics = lambda prediction: {"first": -float(trainer.state.global_step)}
    trainer.train()
    assert str(trainer.state.best_model_checkpoint).endswith("checkpoint-10")
    # What was masked by then is taken out in the end, as it would be where thinning had not come yet.
    weight = model.net.get_parameter("layers.1.weight")
    assert 8 < len(weight) < 16
    assert not (weight == 0).all(1).any()


def test_filters_go_after_training_from_the_best_model_too(tmp_path: Path) -> None:
    args = {**SAVED, "eval_strategy": "steps", "eval_steps": 10, "load_best_model_at_end": True}
    model = Failing()
    recipe = [*thinning()[:1], LayerThinningModifier()]
    trainer = trainer_for(model, tmp_path, 0, 1, args={**args, "metric_for_best_model": "eval_loss"}, recipe=recipe)
    trainer.train()
    assert trainer.state.best_model_checkpoint is not None
    assert model.net.layers[1].out_features == 8
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-5)


class Limited(Failing):
    """Has memory for a number of samples at once, in training."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, pixels: Tensor) -> Tensor:
        if self.training and len(pixels) > self.samples:
            raise torch.OutOfMemoryError("not enough memory")
        return super().forward(pixels)


def second_order() -> list[Modifier]:
    when = {"start_epoch": 0.0, "end_epoch": 0.5, "update_frequency": 0.2}
    return [OBSPruningModifier(init_sparsity=0.2, final_sparsity=0.6, num_grads=4, fisher_block_size=8, **when)]


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", ["auto", 8])
def test_sampled_gradients_are_cut_as_batches_are(micro_batch: Any, tmp_path: Path) -> None:
    whole, cut = Failing(), Limited(8)
    trainer_for(whole, tmp_path / "whole", 0, 1, recipe=second_order()).train()
    trainer_for(cut, tmp_path / "cut", 0, 1, recipe=second_order(), args={"micro_batch": micro_batch}).train()
    for name, weight in whole.state_dict().items():
        assert torch.allclose(weight, cut.state_dict()[name], atol=1e-5), name
        assert torch.equal(weight == 0, cut.state_dict()[name] == 0), name


@pytest.mark.slow
def test_a_sample_that_does_not_fit_is_drawn_in_pieces(tmp_path: Path) -> None:
    class LessFromNowOn(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # Steps themselves fit; what is sampled after them does not.
            kwargs["model"].samples = 32

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["model"].samples = 16

    model = Limited(32)
    args = {"micro_batch": "auto"}
    trainer_for(model, tmp_path, 0, 1, recipe=second_order(), args=args, callbacks=[LessFromNowOn()]).train()
    inner = [p for p in model.parameters() if p.dim() > 1]
    assert sum(int((p == 0).sum()) for p in inner) == round(0.6 * sum(p.numel() for p in inner))
