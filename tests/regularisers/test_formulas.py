"""Each regulariser against its formula, in a loop written by hand in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Bare, classification_rows
from trainwright import FGM, SAM, CutMix, GradientNoise, Mixup, RDrop, Trainer, TrainingArguments
from trainwright.core.modifier import Passes

MakeArguments = Callable[..., TrainingArguments]
RATE = 0.1
ROWS = classification_rows(16, dtype=torch.float64)
X, Y = torch.stack([row["x"] for row in ROWS]), torch.stack([row["labels"] for row in ROWS])


def trained(
    make_args: MakeArguments, model: nn.Module, callback: Any, rows: list[Any] = ROWS, size: int = 16, **more: Any
) -> Trainer:
    args = make_args(
        **{
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": 16 // size,
            "max_steps": 3,
            "learning_rate": RATE,
            "optim": "sgd",
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "train_sampling_strategy": "sequential",
            **more,
        }
    )
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[callback])
    trainer.train()
    return trainer


def step(model: nn.Module, gradients: list[Tensor]) -> None:
    with torch.no_grad():
        for one, gradient in zip(model.parameters(), gradients, strict=True):
            one -= RATE * gradient


def gradients_of(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def assert_same(one: nn.Module, other: nn.Module) -> None:
    assert any(bool((a != b).any()) for a, b in zip(one.parameters(), type(one)().parameters(), strict=True))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


class WatchedMixup(Mixup):
    def __init__(self, alpha: float) -> None:
        super().__init__(alpha)
        self.drawn: list[tuple[Tensor, float]] = []

    def mix(self, values: Tensor, order: Tensor, share: float) -> tuple[Tensor, float]:
        self.drawn.append((order, share))
        return super().mix(values, order, share)


def test_mixup(make_args: MakeArguments) -> None:
    mixup, by_hand = WatchedMixup(0.8), Bare().double()
    trainer = trained(make_args, Bare().double(), mixup)
    assert len({share for _, share in mixup.drawn}) == 3
    for order, share in mixup.drawn:
        assert sorted(order.tolist()) == list(range(16))
        outputs = by_hand(share * X + (1 - share) * X[order])
        loss = share * F.cross_entropy(outputs, Y) + (1 - share) * F.cross_entropy(outputs, Y[order])
        step(by_hand, gradients_of(by_hand, loss))
    assert_same(trainer.model, by_hand)
    # An evaluation sees samples as they are.
    plain = F.cross_entropy(by_hand(X), Y).item()
    assert trainer.evaluate(ROWS)["eval_loss"] == pytest.approx(plain, rel=1e-9)
    assert len(mixup.drawn) == 3


def test_shares_follow_the_beta_distribution() -> None:
    torch.manual_seed(0)
    mixup, shares = WatchedMixup(2.0), []
    for _ in range(400):
        mixup.compute_loss(Passes(lambda inputs: (torch.zeros(()), None), lambda o, y: torch.zeros(())), [X, Y])
        shares.append(mixup.drawn[-1][1])
    found = torch.tensor(shares)
    # Beta(2, 2): mean 1/2, variance 1/20.
    assert found.mean().item() == pytest.approx(0.5, abs=0.03)
    assert found.var().item() == pytest.approx(0.05, abs=0.01)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Bare(width=64).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(1))


class WatchedCutMix(CutMix):
    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[Tensor, Tensor, float]] = []

    def mix(self, values: Tensor, order: Tensor, share: float) -> tuple[Tensor, float]:
        mixed, kept = super().mix(values, order, share)
        self.drawn.append((mixed, order, kept))
        return mixed, kept


def test_cutmix(make_args: MakeArguments) -> None:
    images = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows = [{"x": image, "labels": label} for image, label in zip(images, Y, strict=True)]
    cutmix, by_hand = WatchedCutMix(), Images()
    trainer = trained(make_args, Images(), cutmix, rows)
    assert len(cutmix.drawn) == 3
    for mixed, order, share in cutmix.drawn:
        foreign = (mixed != images)[order != torch.arange(16)]
        # The same rectangle in each image, all of it from the partner.
        assert bool((foreign == foreign[0]).all())
        height, width = foreign[0, 0].any(1).sum(), foreign[0, 0].any(0).sum()
        assert int(foreign[0].sum()) == int(height * width) == round((1 - share) * 64)
        assert bool(torch.equal(mixed, torch.where(mixed != images, images[order], images)))
        outputs = by_hand(mixed)
        loss = share * F.cross_entropy(outputs, Y) + (1 - share) * F.cross_entropy(outputs, Y[order])
        step(by_hand, gradients_of(by_hand, loss))
    assert any(share < 1 for _, _, share in cutmix.drawn)
    assert_same(trainer.model, by_hand)


def test_gradient_noise_however_the_batch_is_cut(make_args: MakeArguments) -> None:
    by_hand = Bare().double()
    for number in range(3):
        generator = torch.Generator().manual_seed((42 * 0x9E3779B97F4A7C15 + number) % 2**63)
        plain = gradients_of(by_hand, F.cross_entropy(by_hand(X), Y))
        spread = (0.3 / (1 + number) ** 0.55) ** 0.5
        step(by_hand, [one + spread * torch.randn(one.shape, generator=generator).double() for one in plain])
    cuts: list[tuple[int, dict[str, Any]]] = [(16, {}), (4, {}), (16, {"micro_batch": 3})]
    for size, more in cuts:
        noise = GradientNoise(eta=0.3)
        assert_same(trained(make_args, Bare().double(), noise, size=size, seed=42, **more).model, by_hand)


class Wobbling(Bare):
    """Two passes in a row differ, without random numbers: as dropout would do it."""

    def __init__(self) -> None:
        super().__init__()
        self.double()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        self.passes += self.training
        return super().forward(x * (1.5 if self.passes % 2 else 0.5))


def test_r_drop_however_the_batch_is_cut(make_args: MakeArguments) -> None:
    labels = Y.clone()
    labels[:3] = -100
    rows = [{"x": one, "labels": label} for one, label in zip(X, labels, strict=True)]
    by_hand = Wobbling()
    for _ in range(3):
        first, second = by_hand(X), by_hand(X)
        mean = (F.cross_entropy(first, labels) + F.cross_entropy(second, labels)) / 2
        counted = [F.log_softmax(one[labels != -100], -1) for one in (first, second)]
        apart = [
            F.kl_div(one, other, log_target=True, reduction="batchmean") for one, other in (counted, counted[::-1])
        ]
        step(by_hand, gradients_of(by_hand, mean + 0.7 * (apart[0] + apart[1]) / 2))
    for size in (16, 4, 2):
        assert_same(trained(make_args, Wobbling(), RDrop(alpha=0.7), rows, size).model, by_hand)


class Tokens(nn.Module):
    """A mean of embeddings, and a class."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(x)).mean(1))


TOKENS = torch.randint(0, 10, (16, 5), generator=torch.Generator().manual_seed(4))
TOKEN_ROWS = [{"x": one, "labels": label} for one, label in zip(TOKENS, Y, strict=True)]


def test_fgm(make_args: MakeArguments) -> None:
    by_hand = Tokens()
    for _ in range(3):
        first = gradients_of(by_hand, F.cross_entropy(by_hand(TOKENS), Y))
        moved = 0.8 * first[0] / first[0].norm()
        with torch.no_grad():
            by_hand.embedding.weight += moved
        second = gradients_of(by_hand, F.cross_entropy(by_hand(TOKENS), Y))
        with torch.no_grad():
            by_hand.embedding.weight -= moved
        step(by_hand, [one + other for one, other in zip(first, second, strict=True)])
    for fgm in (FGM(epsilon=0.8), FGM(epsilon=0.8, params="re:embed")):
        assert_same(trained(make_args, Tokens(), fgm, TOKEN_ROWS).model, by_hand)


@pytest.mark.parametrize("size", [16, 4])
def test_sam(make_args: MakeArguments, size: int) -> None:
    by_hand = Tokens()
    for _ in range(3):
        total = [torch.zeros_like(one) for one in by_hand.parameters()]
        # Of each micro-batch by itself, weighed by its part of the step.
        for tokens, labels in zip(TOKENS.split(size), Y.split(size), strict=True):
            first = gradients_of(by_hand, F.cross_entropy(by_hand(tokens), labels))
            norm = torch.cat([one.flatten() for one in first]).norm()
            before = [one.detach().clone() for one in by_hand.parameters()]
            with torch.no_grad():
                for one, gradient in zip(by_hand.parameters(), first, strict=True):
                    one += 0.3 * gradient / norm
            second = gradients_of(by_hand, F.cross_entropy(by_hand(tokens), labels))
            with torch.no_grad():
                for one, value in zip(by_hand.parameters(), before, strict=True):
                    one.copy_(value)
            total = [one + other * size / 16 for one, other in zip(total, second, strict=True)]
        step(by_hand, total)
    assert_same(trained(make_args, Tokens(), SAM(rho=0.3), TOKEN_ROWS, size).model, by_hand)
