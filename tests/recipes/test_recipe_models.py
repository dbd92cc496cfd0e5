"""Recipes on models as people have them: gradient checkpointing, sparse embeddings, losses of one's own, decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from tests.recipes.digits import MLP, trainer_for
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.distillation.output import DistillationModifier
from trainwright.recipes.distillation.per_layer import PerLayerDistillationModifier
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.pruning.magnitude import GlobalMagnitudePruningModifier
from trainwright.recipes.pruning.mfac import MFACPruningModifier
from trainwright.recipes.pruning.movement import MovementPruningModifier
from trainwright.recipes.pruning.obs import OBSPruningModifier
from trainwright.recipes.pruning.rigl import RigLPruningModifier
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.recipes.quantization.modifier import QuantizationModifier

WORDS = 50
GRADUAL: dict[str, Any] = {"init_sparsity": 0.1, "final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 2}


def language_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=16, **sizes)
    )


def translator(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=WORDS, pad_token_id=0, dropout_rate=0.0, **sizes)
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def sentences(count: int = 16) -> list[dict[str, Tensor]]:
    """Two words at the end of each are padding."""
    generator = torch.Generator().manual_seed(0)
    words = [torch.randint(1, WORDS, (8,), generator=generator) for _ in range(count)]
    return [{"input_ids": ids, "labels": torch.where(torch.arange(8) < 6, ids, -100)} for ids in words]


def train(model: nn.Module, folder: Path, kind: type[Trainer] = Trainer, *, recipe: Any, **options: Any) -> Trainer:
    given = {name: options.pop(name, None) for name in ("teacher", "callbacks")}
    args: dict[str, Any] = {"per_device_train_batch_size": 4, "save_strategy": "no", "report_to": "none"}
    args |= {"num_train_epochs": 1, "learning_rate": 1e-3, "disable_tqdm": True, "use_cpu": True, "seed": 1, **options}
    settings = TrainingArguments(str(folder), **args)
    trainer = kind(model, settings, train_dataset=sentences(), recipe=recipe, **given)
    trainer.train()
    return trainer


def ranges(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith((".low", ".high"))}


# ---- gradient checkpointing


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_does_not_move_the_ranges_of_quantizers_twice(reentrant: bool, tmp_path: Path) -> None:
    plain, checkpointed = language_model(), language_model()
    train(plain, tmp_path / "plain", recipe=[QuantizationModifier()])
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    train(checkpointed, tmp_path / "checkpointed", recipe=[QuantizationModifier()], **options)
    assert ranges(plain)
    for name, bound in ranges(plain).items():
        assert torch.equal(bound, ranges(checkpointed)[name]), name
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, checkpointed.state_dict()[name]), name


def layers_compared() -> list[Modifier]:
    return [PerLayerDistillationModifier(student_layer_names=["model.layers.0.self_attn.q_proj"])]


def test_layers_are_compared_under_gradient_checkpointing(tmp_path: Path) -> None:
    plain, checkpointed = language_model(), language_model()
    train(plain, tmp_path / "plain", recipe=layers_compared(), teacher=language_model(1))
    recipe = layers_compared()

    class Held(TrainerCallback):
        features = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            student: Any = recipe[0]._student  # type: ignore[attr-defined]
            Held.features += len(student.seen)

    options = {"gradient_checkpointing": True, "teacher": language_model(1)}
    trainer = train(checkpointed, tmp_path / "checkpointed", recipe=recipe, callbacks=[Held()], **options)
    assert trainer.state.global_step == 4
    assert Held.features == 0, "what a backward pass computes again is not held until the next step"
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, checkpointed.state_dict()[name]), name


def test_layers_that_checkpointing_hides_are_refused(tmp_path: Path) -> None:
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(ValueError, match="use_reentrant"):
        train(language_model(), tmp_path, recipe=layers_compared(), teacher=language_model(1), **options)


# ---- teachers


class TakesLabelsOut(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return (loss, outputs) if return_outputs else loss


def test_padding_does_not_count_where_a_loss_takes_the_labels_out(tmp_path: Path) -> None:
    ours, own = language_model(), language_model()
    train(ours, tmp_path / "ours", recipe=[DistillationModifier(hardness=0.9)], teacher=language_model(1))
    recipe = [DistillationModifier(hardness=0.9)]
    train(own, tmp_path / "own", TakesLabelsOut, recipe=recipe, teacher=language_model(1))
    for name, weight in ours.state_dict().items():
        assert torch.allclose(weight, own.state_dict()[name], atol=1e-5), name


@pytest.mark.slow
def test_a_teacher_that_decodes_reads_what_the_labels_say(tmp_path: Path) -> None:
    student, teacher = translator(), translator(1)
    rows = sentences(4)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def distance() -> float:
        with torch.no_grad():
            return float((student.eval()(**batch).logits - teacher(**batch).logits).square().mean())

    before = distance()
    recipe = [DistillationModifier(hardness=1.0)]
    train(student, tmp_path, recipe=recipe, teacher=teacher, num_train_epochs=10, learning_rate=1e-2)
    assert distance() < before


# ---- gradients that are sparse


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words).mean(1))


BY_GRADIENT: dict[str, Callable[[], Modifier]] = {
    "movement": lambda: MovementPruningModifier(**GRADUAL, update_frequency=0.5),
    "obs": lambda: OBSPruningModifier(**GRADUAL, update_frequency=0.5, num_grads=3, global_sparsity=False),
    "mfac": lambda: MFACPruningModifier(**GRADUAL, update_frequency=0.5, num_grads=3),
    "rigl": lambda: RigLPruningModifier(
        final_sparsity=0.5, start_epoch=0, end_epoch=2, update_frequency=0.5, sparsity_strategy="uniform"
    ),
    "rigl, several batches": lambda: RigLPruningModifier(
        final_sparsity=0.5, start_epoch=0, end_epoch=2, update_frequency=0.5, sparsity_strategy="uniform", num_grads=2
    ),
}


@pytest.mark.parametrize("case", BY_GRADIENT)
def test_embeddings_with_sparse_gradients_are_pruned(case: str) -> None:
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        words, labels = torch.randint(0, 20, (4, 5), generator=generator), torch.arange(4) % 3
        return functional.cross_entropy(model(words), labels)

    def gradients(count: int) -> Iterator[None]:
        for number in range(count):
            model.zero_grad()
            loss(100 + number).backward()
            yield
        model.zero_grad()

    drive = ManualLoop([BY_GRADIENT[case]()], model, optimizer, 4, gradients=gradients)
    for step in range(8):
        drive.loss(loss(step)).backward()
        drive.step()
        optimizer.zero_grad()
    drive.finish()
    assert int((model.embedding.weight == 0).sum()) == 80
    assert int((model.head.weight == 0).sum()) == 12


# ---- what would be lost without a word


def test_a_layer_that_a_common_ranking_empties_is_named() -> None:
    model = Bag()
    with torch.no_grad():
        model.head.weight.mul_(1e-3)
    modifier = GlobalMagnitudePruningModifier(**GRADUAL)
    modifier.prepare_model(model)
    with pytest.warns(TrainwrightWarning, match=r"head\.weight has no weight left"):
        modifier.advance(Site(model, None, steps_per_epoch=4), 2.0)


def test_filters_of_a_model_that_cannot_be_traced_are_not_chosen_blindly() -> None:
    with pytest.raises(ValueError, match="name the weights in params"):
        StructuredPruningModifier(**GRADUAL).prepare_model(language_model())


@pytest.mark.parametrize("value", [None, "soon", [1]])
def test_an_epoch_that_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"start_epoch=.* must be a number"):
        QuantizationModifier(start_epoch=value)


# ---- what happens at every step


class Shrink(Modifier):
    """A modifier of somebody's own, which is not the same when done twice."""

    def update(self, site: Site, epoch: float) -> None:
        with torch.no_grad():
            site.model.get_parameter("layers.1.weight").mul_(0.99)


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 10:
            control.should_save = control.should_training_stop = True


EVERY_STEP: dict[str, Callable[[], Modifier]] = {
    "own": lambda: Shrink(end_epoch=1),
    "rigl": lambda: RigLPruningModifier(
        final_sparsity=0.5, start_epoch=0, end_epoch=1, update_frequency=-1, num_grads=2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY_STEP)
def test_a_stop_does_not_repeat_what_is_done_at_every_step(case: str, tmp_path: Path) -> None:
    def run(folder: str, callbacks: list[Any], **options: Any) -> nn.Module:
        torch.manual_seed(0)
        model = MLP(16)
        trainer = trainer_for(model, tmp_path / folder, 0, 1, recipe=[EVERY_STEP[case]()], callbacks=callbacks)
        trainer.train(**options)
        return model

    whole = run("whole", [])
    run("parts", [Stop()])
    resumed = run("parts", [], resume_from_checkpoint=True)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
