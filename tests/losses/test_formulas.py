"""Each loss against its formula, written out sample by sample in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trainwright import (
    BinaryCrossEntropyLoss,
    ContrastiveLoss,
    CrossEntropyLoss,
    DiceCrossEntropyLoss,
    DiceLoss,
    FocalLoss,
    InfoNCELoss,
    Loss,
    OrdinalLoss,
    SupConLoss,
    TripletLoss,
)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chances(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def close(found: Tensor, expected: float) -> None:
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected, rel=1e-10)


LOGITS, LABELS = numbers(6, 4), torch.tensor([0, 3, -100, 1, 1, 2])
COUNTED = [(row, label) for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True) if label != -100]
WEIGHTS = [0.5, 2.0, 1.0, 3.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_cross_entropy(smoothing: float, weights: list[float] | None) -> None:
    factors = weights or [1.0] * 4
    expected = 0.0
    for row, label in COUNTED:
        logs = [math.log(chance) for chance in chances(row)]
        expected -= (1 - smoothing) * factors[label] * logs[label]
        expected -= smoothing / 4 * sum(factor * log for factor, log in zip(factors, logs, strict=True))
    close(CrossEntropyLoss(smoothing, weights)(LOGITS, LABELS), expected / len(COUNTED))
    # As images are: the classes in the second place.
    images, pixels = LOGITS.reshape(2, 3, 4).movedim(-1, 1), LABELS.reshape(2, 3)
    close(CrossEntropyLoss(smoothing, weights)({"logits": images}, pixels), expected / len(COUNTED))


def test_cross_entropy_without_options_is_that_of_torch() -> None:
    expected = torch.nn.functional.cross_entropy(LOGITS, LABELS)
    close(CrossEntropyLoss()(LOGITS, LABELS), expected.item())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal(gamma: float) -> None:
    expected = 0.0
    for row, label in COUNTED:
        chance = chances(row)[label]
        expected -= WEIGHTS[label] * (1 - chance) ** gamma * math.log(chance)
    close(FocalLoss(gamma, WEIGHTS)(LOGITS, LABELS), expected / len(COUNTED))


def test_focal_has_a_gradient_where_the_model_is_sure() -> None:
    logits = torch.tensor([[200.0, 0.0]], dtype=torch.float64, requires_grad=True)
    FocalLoss(0.5)(logits, torch.tensor([0])).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("as_float", [True, False])
def test_several_classes(as_float: bool) -> None:
    logits = numbers(3, 2)
    labels = torch.tensor([[1, 0], [-100, 1], [0, 0]])
    given = labels.double() if as_float else labels
    for factors, loss in (([3.0, 3.0], BinaryCrossEntropyLoss(3.0)), ([2.0, 0.5], BinaryCrossEntropyLoss([2.0, 0.5]))):
        expected, count = 0.0, 0
        for row, marks in zip(logits.tolist(), labels.tolist(), strict=True):
            for value, mark, factor in zip(row, marks, factors, strict=True):
                if mark != -100:
                    count += 1
                    chance = sigmoid(value)
                    expected -= factor * mark * math.log(chance) + (1 - mark) * math.log(1 - chance)
        close(loss(logits, given), expected / count)
        assert loss.count_targets({"labels": given}, lambda batch: None) == count == 5


def test_smoothing_of_several_classes() -> None:
    chance = sigmoid(0.7)
    expected = -(0.9 * math.log(chance) + 0.1 * math.log(1 - chance))
    given = torch.tensor([[0.7]], dtype=torch.float64)
    close(BinaryCrossEntropyLoss(smoothing=0.2)(given, torch.tensor([[1]])), expected)


def dice_of(chance: list[float], mark: list[float], smooth: float = 1.0) -> float:
    overlap = sum(one * other for one, other in zip(chance, mark, strict=True))
    return (2 * overlap + smooth) / (sum(chance) + sum(mark) + smooth)


@pytest.mark.parametrize("background", [True, False])
def test_dice_of_classes(background: bool) -> None:
    logits, labels = numbers(3, 3, 2, 2), torch.tensor([[[0, 1], [2, -100]], [[1, 1], [0, 0]], [[-100] * 2] * 2])
    dices, entropies = [], []
    for sample, marks in zip(logits[:2], labels[:2], strict=True):
        pixels = [
            (chances(values), mark)
            for values, mark in zip(sample.flatten(1).T.tolist(), marks.flatten().tolist(), strict=True)
            if mark != -100
        ]
        classes = range(0 if background else 1, 3)
        each = [dice_of([one[k] for one, _ in pixels], [float(mark == k) for _, mark in pixels]) for k in classes]
        dices.append(1 - sum(each) / len(each))
        entropies.append(-sum(math.log(one[mark]) for one, mark in pixels) / len(pixels))
    # The third sample has no pixel that counts.
    loss = DiceLoss(background=background)
    close(loss(logits, labels), sum(dices) / 2)
    assert loss.count_targets({"labels": labels}, lambda batch: None) == 2
    both = DiceCrossEntropyLoss(0.5, background=background)
    close(both(logits, labels), sum(dices) / 2 + 0.5 * sum(entropies) / 2)


def test_dice_of_areas_that_may_overlap() -> None:
    logits, labels = numbers(2, 2, 3), torch.tensor([[[1.0, 0, 1], [0, 0, 1]], [[0, 1, 1], [1, 1, 0]]]).double()
    found = [
        1 - dice_of([sigmoid(value) for value in row], marks, 0.5)
        for sample, areas in zip(logits.tolist(), labels.tolist(), strict=True)
        for row, marks in zip(sample, areas, strict=True)
    ]
    close(DiceLoss(smooth=0.5)(logits, labels), sum(found) / 4)
    whole = [
        1
        - dice_of([sigmoid(value) for value in logits[:, area].flatten().tolist()], labels[:, area].flatten().tolist())
        for area in (0, 1)
    ]
    over_batch = DiceLoss(over_batch=True)
    close(over_batch(logits, labels), sum(whole) / 2)
    assert over_batch.joins_samples is not None


def test_ordinal() -> None:
    by_class, by_border = 0.0, 0.0
    for row, label in COUNTED:
        for border in range(3):
            above = sum(chances(row)[border + 1 :])
            by_class -= math.log(above if label > border else 1 - above)
            higher = sigmoid(row[border])
            by_border -= math.log(higher if label > border else 1 - higher)
    close(OrdinalLoss()(LOGITS, LABELS), by_class / len(COUNTED))
    close(OrdinalLoss("borders")(LOGITS[:, :3], LABELS), by_border / len(COUNTED))


def apart(one: list[float], other: list[float]) -> float:
    return math.dist(one, other)


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / (math.hypot(*one) * math.hypot(*other))


def test_contrastive_of_pairs() -> None:
    first, second, labels = numbers(5, 3), numbers(5, 3, seed=1), torch.tensor([1, 0, 0, 1, 0])
    expected = 0.0
    for one, other, label in zip(first.tolist(), second.tolist(), labels.tolist(), strict=True):
        expected += apart(one, other) ** 2 if label else max(0.0, 2.5 - apart(one, other)) ** 2
    for outputs in ((first, second), {"one": first, "other": second}, torch.stack([first, second], 1)):
        close(ContrastiveLoss(margin=2.5)(outputs, labels), expected / 5)


@pytest.mark.parametrize("both_ways", [True, False])
def test_info_nce(both_ways: bool) -> None:
    first, second = numbers(4, 3), numbers(4, 3, seed=1)
    alike = [[cosine(one, other) / 0.5 for other in second.tolist()] for one in first.tolist()]
    forth = -sum(math.log(chances(alike[i])[i]) for i in range(4)) / 4
    back = -sum(math.log(chances([row[i] for row in alike])[i]) for i in range(4)) / 4
    close(InfoNCELoss(0.5, both_ways)((first, second), None), (forth + back) / 2 if both_ways else forth)


def test_supervised_contrastive() -> None:
    found, labels = numbers(7, 3), torch.tensor([0, 0, 1, 0, 2, 1, -100])
    rows, marks = found[:6].tolist(), labels[:6].tolist()
    each = []
    for i in range(6):
        others = [j for j in range(6) if j != i]
        partners = [j for j in others if marks[j] == marks[i]]
        below = sum(math.exp(cosine(rows[i], rows[j]) / 0.5) for j in others)
        if partners:
            logs = [cosine(rows[i], rows[j]) / 0.5 - math.log(below) for j in partners]
            each.append(-sum(logs) / len(logs))
    assert len(each) == 5
    given = found.clone().requires_grad_()
    loss = SupConLoss(0.5)(given, labels)
    close(loss, sum(each) / 5)
    loss.backward()
    assert given.grad is not None
    assert bool(given.grad.isfinite().all())


def test_triplets_that_are_given() -> None:
    anchor, positive, negative = numbers(4, 3), numbers(4, 3, seed=1), numbers(4, 3, seed=2)
    each = [
        max(0.0, apart(one, good) - apart(one, bad) + 0.7)
        for one, good, bad in zip(anchor.tolist(), positive.tolist(), negative.tolist(), strict=True)
    ]
    assert sum(value > 0 for value in each) > 0
    close(TripletLoss(0.7)((anchor, positive, negative), None), sum(each) / 4)


def test_triplets_of_a_batch() -> None:
    found, labels = numbers(6, 3), torch.tensor([0, 0, 1, 0, 1, 2])
    rows, marks = found.tolist(), labels.tolist()
    hard, every = [], []
    for i in range(6):
        good = [apart(rows[i], rows[j]) for j in range(6) if j != i and marks[j] == marks[i]]
        bad = [apart(rows[i], rows[j]) for j in range(6) if marks[j] != marks[i]]
        every += [max(0.0, one - other + 0.7) for one in good for other in bad]
        if good:
            hard.append(max(0.0, max(good) - min(bad) + 0.7))
    given = found.clone().requires_grad_()
    close(TripletLoss(0.7, "hard")(given, labels), sum(hard) / 5)
    close(TripletLoss(0.7, "all")(given, labels), sum(every) / len(every))
    TripletLoss(0.7, "hard")(given, labels).backward()
    assert given.grad is not None
    assert bool(given.grad.isfinite().all())


def test_nothing_to_learn_from_is_a_loss_of_0() -> None:
    none = torch.full((6,), -100)
    for loss in (CrossEntropyLoss(), FocalLoss(), OrdinalLoss(), SupConLoss()):
        given = LOGITS.clone().requires_grad_()
        found = loss(given, none)
        found.backward()
        assert found.item() == 0.0
        assert given.grad is not None
        assert bool((given.grad == 0).all())


def test_balanced_weights_are_counted() -> None:
    loss = CrossEntropyLoss(class_weights="balanced")
    with pytest.raises(ValueError, match="the labels of the training data, which are not there"):
        loss(LOGITS, LABELS)
    loss.take_labels([torch.tensor(label) for label in [0] * 6 + [1] * 3 + [3] * 1 + [-100] * 5])
    # 10 samples of 3 classes; class 2 has none.
    assert loss.found_weights == pytest.approx([10 / 18, 10 / 9, 1.0, 10 / 3])
    sequences = CrossEntropyLoss(class_weights="balanced")
    sequences.take_labels([[0, 0, -100], torch.tensor([1, 0])])
    assert sequences.found_weights == pytest.approx([4 / 6, 2.0])
    several = BinaryCrossEntropyLoss("balanced")
    several.take_labels([[1, 0], [0, 0], torch.tensor([0, -100]), [0, 1]])
    assert several.found_weights == pytest.approx([3.0, 2.0])


def mistakes() -> list[tuple[Any, tuple[Any, ...], str]]:
    one, classes = torch.zeros(2, 3), torch.tensor([0, 1])
    return [
        (CrossEntropyLoss(), (one, torch.tensor([0, 3])), r"labels hold 3, .* 3 classes, 0 to 2: number the labels"),
        (FocalLoss(), (one, torch.tensor([-1, 0])), "labels hold -1"),
        (CrossEntropyLoss(), (one, torch.zeros(2)), r"of torch.float32: give whole numbers \(labels.long"),
        (
            CrossEntropyLoss(),
            (one, torch.zeros(3, dtype=torch.long)),
            r"\(2, 3\) do not go with labels of shape \(3,\)",
        ),
        (CrossEntropyLoss(), (one, None), "the batch has none: give it 'labels'"),
        (CrossEntropyLoss(class_weights=[1, 2]), (one, classes), "has 2 numbers, and the outputs have 3 classes"),
        (BinaryCrossEntropyLoss(), (one, classes), "should have the same: a 0 or 1 for each class"),
        (BinaryCrossEntropyLoss(), (one, one + 2), "labels are 0, 1 or between"),
        (DiceLoss(), (torch.zeros(2, 1, 4), torch.zeros(2, 4).long()), "one output cannot tell classes apart"),
        (DiceLoss(), (one, classes), "needs a label for each pixel"),
        (DiceLoss(), (one, torch.zeros(2, 4)), "labels as floats have the shape of the outputs"),
        (OrdinalLoss("borders"), (one, torch.tensor([0, 4])), "labels hold 4, and the outputs have 4 classes"),
        (ContrastiveLoss(), (one, classes), "takes 2 embeddings for each sample"),
        (ContrastiveLoss(), ((one, one), torch.tensor([1, 2])), "1 where both belong together"),
        (InfoNCELoss(), ((one, one), classes), r"take the labels out, or take SupConLoss"),
        (SupConLoss(), (one, torch.zeros(2)), r"\(samples,\), and got \(2, 3\) and \(2,\) of torch.float32"),
        (TripletLoss(), ((one, one), None), "takes 3 embeddings for each sample"),
        (TripletLoss(), ((one, one, one), classes), "let mining='hard' or 'all' make triplets"),
    ]


@pytest.mark.parametrize(("loss", "given", "words"), mistakes())
def test_what_does_not_fit_is_refused_with_the_way_out(loss: Loss, given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        loss(*given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CrossEntropyLoss(smoothing=1.5), "smoothing=1.5 should be a number, at least 0 and at most 1"),
        (lambda: CrossEntropyLoss(class_weights="blanced"), "a number for each class, or 'balanced'"),
        (lambda: CrossEntropyLoss(class_weights=[1, -1]), r"class_weights\[1\]=-1 should be a number, at least 0"),
        (lambda: FocalLoss(gamma=math.nan), "gamma=nan should be a number"),
        (lambda: OrdinalLoss("class"), "outputs='class' should be one of classes, borders"),
        (lambda: ContrastiveLoss(margin=0), "margin=0 should be a number, more than 0"),
        (lambda: InfoNCELoss(temperature="low"), "temperature='low' should be a number"),  # type: ignore[arg-type]
        (lambda: TripletLoss(mining="soft"), "mining='soft' should be one of given, hard, all"),
    ],
)
def test_settings_are_checked(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_no_loss_looks_at_values_where_that_would_wait_for_a_gpu() -> None:
    """Tensors without values: what reads one raises, and so does what mixes devices."""
    pair = [torch.zeros(6, 4, device="meta") for _ in range(3)]
    labels, ones = torch.zeros(6, dtype=torch.long, device="meta"), torch.zeros(6, 4, device="meta")
    pixels = torch.zeros(6, 4, 2, device="meta"), torch.zeros(6, 2, dtype=torch.long, device="meta")
    cases: list[tuple[Loss, Any, Any]] = [
        (CrossEntropyLoss(0.1, WEIGHTS), pair[0], labels),
        (FocalLoss(2.0, WEIGHTS), pair[0], labels),
        (OrdinalLoss(), pair[0], labels),
        (OrdinalLoss("borders"), pair[0], labels),
        (BinaryCrossEntropyLoss(WEIGHTS, 0.1), pair[0], ones),
        (DiceCrossEntropyLoss(), *pixels),
        (DiceLoss(over_batch=True), pair[0], ones),
        (ContrastiveLoss(), pair[:2], labels),
        (InfoNCELoss(), pair[:2], None),
        (SupConLoss(), pair[0], labels),
        (TripletLoss(), pair, None),
        (TripletLoss(mining="hard"), pair[0], labels),
        (TripletLoss(mining="all"), pair[0], labels),
    ]
    for loss, outputs, given in cases:
        found = loss(outputs, given, torch.zeros((), device="meta"))
        assert found.is_meta
        assert found.shape == ()
        counted = loss.count_targets({"labels": given}, lambda batch: 6) if given is not None else 6
        assert isinstance(counted, int) or counted.is_meta
