"""The comparison before the first step: with what the network is called with, and again when the network changes."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.acceleration.networks import Convolutional, causal_batch, llama
from tests.acceleration.test_runs import images, rows, same, told, trainer, weights
from trainwright import Module, Trainer, TrainerCallback
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.proof import Passes, worst
from trainwright.engines.torch.acceleration.technique import Situation, Undo
from trainwright.training import acceleration

pytestmark = pytest.mark.filterwarnings("default")


class Watched:
    """An acceleration that changes nothing, and notes the shapes of the inputs that it is compared on.

    The call that is trained on has begun when it is put in for good, and goes on as it was.
    """

    name = "blocks"
    says = "nothing is done"
    changes_bits = True
    is_visible = False
    is_proven = True
    is_compiled = False

    pays_on_cpu = False

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def why_not_for(self, call: Call) -> str | None:
        return None

    def why_not(self, situation: Situation) -> str | None:
        return None

    def install(self, situation: Situation) -> Undo:
        network = situation.network
        plain = network.forward

        def noting(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            self.seen.append(tuple(next(one for one in given if isinstance(one, Tensor)).shape))
            return plain(*args, **kwargs)

        network.forward = noting

        def undo() -> None:
            del network.forward

        return undo


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    monkeypatch.setattr(acceleration, "TECHNIQUES", (found,))
    return found


def proofs(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for line in lines if (event := json.loads(line))["kind"] == "acceleration"]


class OwnCall(Trainer):
    """Calls the network with something that is not the batch."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(inputs["input_ids"][:, :7])
        loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels[:, :7].flatten())
        return (loss, outputs) if return_outputs else loss


def test_an_overridden_loss_is_not_called_for_it_but_what_it_calls_is_compared(
    tmp_path: Path, watched: Watched
) -> None:
    run = trainer(tmp_path / "run", kind=OwnCall, acceleration=["blocks"])
    run.train()
    assert told(tmp_path / "run")["used"] == ["blocks"]
    assert told(tmp_path / "run")["shapes"] == {"0": {"shape": [4, 7]}}
    assert watched.seen[0] == (4, 7)
    plain = trainer(tmp_path / "plain", kind=OwnCall, acceleration="off")
    plain.train()
    assert same(weights(run.model), weights(plain.model))


class Around(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return model.lm_head(model.model(inputs["input_ids"]).last_hidden_state).pow(2).mean()


def test_a_network_that_is_never_called_as_a_whole_is_left_plain(tmp_path: Path, watched: Watched) -> None:
    run = trainer(tmp_path, kind=Around, acceleration=["blocks"])
    run.train()
    assert told(tmp_path)["left_out"]["blocks"] == "the network as a whole is never called"


class OwnStep(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = llama()

    def training_step(self, batch: Any) -> Any:
        return self.model(**batch).loss


def test_the_network_of_a_module_is_compared_where_its_step_calls_it(tmp_path: Path, watched: Watched) -> None:
    found = []
    for wanted in (["blocks"], "off"):
        torch.manual_seed(0)
        run = trainer(tmp_path / str(wanted), OwnStep(), acceleration=wanted)
        run.train()
        found.append(weights(run.model))
    assert told(tmp_path / "['blocks']")["used"] == ["blocks"]
    assert same(*found)


class Unfreeze(TrainerCallback):
    """Trains the first layers from the third step on."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == 2:
            model.model.layers[0].requires_grad_(True)


def test_it_is_compared_again_when_other_parameters_are_trained(tmp_path: Path, watched: Watched) -> None:
    model = llama()
    model.model.layers[0].requires_grad_(False)
    trainer(tmp_path, model, acceleration=["blocks"], callbacks=[Unfreeze()]).train()
    assert [event["step"] for event in proofs(tmp_path)] == [0, 2]


class Broken(Watched):
    """Is wrong in layers that are trained later only."""

    def install(self, situation: Situation) -> Undo:
        layer = situation.network.get_submodule("model.layers.0.mlp.down_proj")

        def double_gradient(gradient: Tensor) -> Tensor:
            return gradient * 2

        handles = [one.register_hook(double_gradient) for one in layer.parameters() if one.requires_grad]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo


def test_what_fails_then_is_left_out_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "TECHNIQUES", (Broken(),))
    model = llama()
    model.model.layers[0].requires_grad_(False)
    trainer(tmp_path, model, acceleration=["blocks"], callbacks=[Unfreeze()]).train()
    first, second = proofs(tmp_path)
    assert first["used"] == ["blocks"]
    assert second["used"] == []
    assert "its gradient of model.layers.0.mlp.down_proj.weight is off by" in second["left_out"]["blocks"]


#: Passes over the whole batch that follow: one to see what it brings, two to see whether bits repeat.
MEASURED = 3


def test_a_network_that_drops_nothing_is_compared_in_the_shapes_of_its_batch(tmp_path: Path, watched: Watched) -> None:
    """What is compiled for the comparison is what is trained with."""
    trainer(tmp_path, acceleration=["blocks"], max_steps=1).train()
    assert watched.seen == [(4, 12)] + [(4, 12)] * MEASURED


def test_one_that_drops_is_compiled_for_its_batch_and_compared_on_two_samples(tmp_path: Path, watched: Watched) -> None:
    trainer(tmp_path, Convolutional(), images(), acceleration=["blocks"], max_steps=1).train()
    assert watched.seen == [(4, 3, 10, 10), (2, 3, 10, 10)] + [(4, 3, 10, 10)] * MEASURED


class Contrasting(nn.Module):
    """Each sample is told apart from the others of its batch: the same sample twice is another task."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        states = self.layer(x)
        return {"loss": F.cross_entropy(states @ states.T * 3, torch.arange(len(x), device=x.device))}


def test_samples_that_look_at_each_other_are_compared_too(tmp_path: Path, watched: Watched) -> None:
    generator = torch.Generator().manual_seed(0)
    data = [{"x": one, "labels": torch.tensor(0)} for one in torch.randn(12, 6, generator=generator)]
    trainer(tmp_path, Contrasting(), data, acceleration=["blocks"], max_steps=1).train()
    assert told(tmp_path)["used"] == ["blocks"]
    assert watched.seen == [(4, 6), (2, 6)] + [(4, 6)] * MEASURED


class Looking(nn.Module):
    """A block that asks for one of its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * max(1.0, self.first.weight.abs().max().item())


class OfLookingBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Looking() for _ in range(3))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"loss": F.cross_entropy(x, labels)} if labels is not None else {"logits": x}


def test_a_block_that_breaks_stays_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number would be compiled into it, anew whenever it is another one."""
    monkeypatch.setattr(acceleration, "TECHNIQUES", (CompiledBlocks(backend="aot_eager"),))
    torch.compiler.reset()
    data = [{"x": torch.randn(6), "labels": torch.tensor(0)} for _ in range(12)]
    run = trainer(tmp_path, OfLookingBlocks(), data, acceleration=["blocks"])
    run.train()
    assert told(tmp_path)["used"] == []
    assert told(tmp_path)["left_out"]["blocks"].startswith("it cannot be compiled in one piece")


def wide_gradients_of_queries(*, freezes: bool) -> tuple[dict[str, Tensor], list[int]]:
    """Also how many frozen weights there were in the wide format at a time."""
    torch.manual_seed(0)
    network = llama().bfloat16()
    for name, one in network.named_parameters():
        one.requires_grad_("q_proj" in name or not freezes)
    held: list[int] = []

    def count(*_: Any) -> None:
        frozen = [one for one in network.model.layers.parameters() if not one.requires_grad]
        held.append(sum(one.dtype == torch.float64 for one in frozen))

    for layer in network.model.layers:
        layer.mlp.register_forward_pre_hook(count)
    wide = Passes(network, Call((), causal_batch()), contextlib.nullcontext).wide_gradients(torch.float64)
    return {name: one for name, one in wide.items() if "q_proj" in name or name == "the loss"}, held


def test_frozen_layers_are_widened_one_after_the_other_with_the_same_result() -> None:
    """Of a network with adapters nearly all is frozen: a wide copy of all of it may not fit beside it."""
    found, held = wide_gradients_of_queries(freezes=True)
    # Those of one layer of three, each on the way forward and on the way back.
    assert held == [8] * 6
    assert same(found, wide_gradients_of_queries(freezes=False)[0])


def test_an_error_is_measured_by_what_is_usual_among_gradients_that_are_not_zero() -> None:
    """One adapter matrix of two begins at zero, so that the other one's gradient is zero in either way."""
    plain = {"a": 0.0, "b": 2e-7, "c": 0.0, "d": 1e-8}
    fast = {"a": 0.0, "b": 2e-7, "c": 0.0, "d": 9e-8}

    def as_tensors(values: dict[str, float]) -> dict[str, Tensor]:
        return {name: torch.tensor(value) for name, value in values.items()}

    assert worst(as_tensors(fast), as_tensors(plain)).passed
    assert not worst(as_tensors({**fast, "a": 1e-3}), as_tensors(plain)).passed


class Remembering(nn.Module):
    """Keeps all kinds of things from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.calls, self.longest, self.kept = 0, 0, deque(maxlen=4)
        self.cache: Any = None
        self.held: dict[str, Any] = {"sums": []}
        self.table = np.zeros(3)
        self.plain = torch.zeros(3)
        self.box = SimpleNamespace(count=0)
        #: Out of sight of ``modules()``, as teachers often are.
        self.hidden = [nn.BatchNorm1d(6)]
        self.register_buffer("mean", None)
        self.register_buffer("grown", torch.zeros(1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        self.calls += 1
        self.longest = max(self.longest, len(x))
        if self.cache is None:
            self.cache = torch.linspace(0, 1, 6, dtype=x.dtype) * x.mean()
        if self.mean is None:
            self.mean = x.detach().mean(0)
        if len(self.grown) < len(x):
            self.register_buffer("grown", torch.ones(len(x)))
        self.kept.append(x.detach().sum())
        self.held["sums"].append(float(x.detach().sum()))
        self.table += 1
        self.plain += 1
        self.box.count += 1
        self.hidden[0](x.detach().float())
        assert labels is not None
        return {"loss": F.cross_entropy(self.layer(x) + self.cache.to(x.dtype), labels) * (1 + self.calls / 10)}

    def memory(self) -> Any:
        tensors = [self.cache, self.mean, self.grown, self.plain, *self.kept, *self.hidden[0].buffers()]
        return (
            [(None if one is None else (one.dtype, one.tolist())) for one in tensors],
            (self.calls, self.longest, self.held, self.table.tolist(), self.box.count),
        )


def vectors() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"x": one, "labels": torch.tensor(0)} for one in torch.randn(24, 6, generator=generator)]


def test_what_a_network_keeps_from_call_to_call_is_what_it_was(tmp_path: Path, watched: Watched) -> None:
    found = []
    for wanted in ("off", ["blocks"]):
        torch.manual_seed(0)
        run = trainer(tmp_path / str(wanted), Remembering(), vectors(), acceleration=wanted)
        run.train()
        network: Any = run.model
        found.append((network.memory(), weights(network)))
    assert told(tmp_path / "['blocks']")["used"] == ["blocks"]
    (plain, plain_weights), (other, other_weights) = found
    assert plain == other
    assert same(plain_weights, other_weights)


class MovingTeacher(nn.Module):
    """Its teacher follows in the forward pass, in the way of most implementations."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.student, self.teacher, self.by_data = nn.Linear(6, 6), nn.Linear(6, 6), by_data
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        with torch.no_grad():
            teacher = self.teacher.weight.data if self.by_data else self.teacher.weight
            teacher.mul_(0.9).add_(self.student.weight, alpha=0.1)
        return {"loss": (self.student(x) - self.teacher(x)).pow(2).mean()}


@pytest.mark.parametrize("by_data", [False, True])
def test_a_forward_that_moves_weights_is_left_alone(by_data: bool, tmp_path: Path, watched: Watched) -> None:
    found = []
    for wanted in ("off", ["blocks"]):
        torch.manual_seed(0)
        run = trainer(tmp_path / str(wanted), MovingTeacher(by_data), vectors(), acceleration=wanted)
        run.train()
        found.append(weights(run.model))
    assert told(tmp_path / "['blocks']")["left_out"]["blocks"] == "its forward changes teacher.weight"
    assert same(*found)


def test_a_hook_on_the_network_does_not_hear_of_the_comparison(tmp_path: Path, watched: Watched) -> None:
    model = llama()
    heard: list[int] = []
    model.register_forward_hook(lambda *_: heard.append(1))
    trainer(tmp_path, model, acceleration=["blocks"]).train()
    assert len(heard) == 4


class PointingInto(nn.Module):
    """Takes the state at a position that comes with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.head = nn.Embedding(96, 6), nn.Linear(6, 2)

    def forward(self, input_ids: Tensor, last: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        assert labels is not None
        chosen = self.states(input_ids)[torch.arange(len(last)), last]
        return {"loss": F.cross_entropy(self.head(chosen), labels)}


def test_a_resume_whose_batch_points_beyond_the_first_ones_shape_goes_on(
    tmp_path: Path, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.is_compiled = True
    lengths = [2 + number // 4 for number in range(24)]
    data = [{"input_ids": torch.ones(n, dtype=torch.long), "last": n - 1, "labels": n % 2} for n in lengths]

    def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        rest = {name: torch.tensor([sample[name] for sample in samples]) for name in ("last", "labels")}
        return {"input_ids": nn.utils.rnn.pad_sequence([one["input_ids"] for one in samples], True), **rest}

    options: dict[str, Any] = {"acceleration": ["blocks"], "train_sampling_strategy": "sequential", "max_steps": 5}
    found = []
    for name, checkpoint in (("whole", None), ("again", str(tmp_path / "whole" / "checkpoint-3"))):
        torch.manual_seed(0)
        run = trainer(tmp_path / name, PointingInto(), data, **options, save_strategy="steps", save_steps=3)
        run.data_collator = collate
        run.train(resume_from_checkpoint=checkpoint)
        found.append(weights(run.model))
    assert same(*found)
    assert "compiled for other shapes than at its beginning" in caplog.text


def test_a_float64_training_is_compared_with_itself(tmp_path: Path) -> None:
    trainer(tmp_path, llama().double(), acceleration=["logits"]).train()
    assert told(tmp_path)["used"] == ["logits"]


def test_a_cache_that_a_pass_would_write_into_is_not_shared_with_the_comparison() -> None:
    class Cache: ...

    with pytest.raises(ValueError, match="called with a Cache, which a pass may change"):
        Call((torch.zeros(2),), {"past": Cache()}).copied()


def test_a_copy_of_a_call_is_its_own() -> None:
    given = torch.zeros(2, requires_grad=True)
    call = Call((given * 1,), {"mask": torch.ones(2, dtype=torch.bool), "names": ["a", "b"], "scale": 0.5})
    copy = call.copied(torch.float64)
    assert copy.args[0].dtype == torch.float64
    assert copy.args[0].is_leaf
    assert copy.kwargs["mask"].dtype == torch.bool
    assert (copy.kwargs["names"], copy.kwargs["scale"]) == (["a", "b"], 0.5)
    copy.kwargs["mask"].zero_()
    assert bool(call.kwargs["mask"].all())


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_a_loss_by_a_count_of_targets_is_the_same_when_samples_are_repeated(shape: tuple[int, ...]) -> None:
    """As transformers' models take it: a sum, divided by what they are told."""
    call = Call((torch.rand(*shape, dtype=torch.float64),), {"num_items_in_batch": torch.tensor(7)})

    def loss(one: Call) -> Tensor:
        return one.args[0].sum() / one.kwargs["num_items_in_batch"]

    torch.testing.assert_close(loss(call.repeated(3)), loss(call))
    assert call.repeated(3).args[0].shape == (3 * shape[0], *shape[1:])


def test_five_samples_are_compared_on_three(tmp_path: Path, watched: Watched) -> None:
    """They cannot be fewer samples repeated."""
    trainer(tmp_path, data=rows(10), acceleration=["blocks"], per_device_train_batch_size=5, max_steps=1).train()
    assert told(tmp_path)["used"] == ["blocks"]
    assert watched.seen == [(5, 12), (3, 12)] + [(5, 12)] * MEASURED
