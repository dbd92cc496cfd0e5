"""A SparseML script after its imports were changed: digits learned densely, then with a tenth of the weights.

    pip install . scikit-learn && python examples/sparseml_digits.py

First by the Trainer with a teacher, then the result goes on in a loop of one's own, its zeros kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from trainwright.compat.sparseml.pytorch.optim import ScheduledModifierManager
from trainwright.compat.sparseml.transformers.sparsification import Trainer, TrainingArguments

RECIPE = """\
num_epochs: 12
final_sparsity: 0.9
training_modifiers:
  - !EpochRangeModifier
      start_epoch: 0.0
      end_epoch: eval(num_epochs)
pruning_modifiers:
  - !MagnitudePruningModifier
      params: __ALL_PRUNABLE__
      init_sparsity: 0.3
      final_sparsity: eval(final_sparsity)
      start_epoch: 1.0
      end_epoch: eval(num_epochs * 2 / 3)
      update_frequency: 0.5
distillation_modifiers:
  - !DistillationModifier
      hardness: 0.5
      temperature: 2.0
"""
KEEP = """\
pruning_modifiers:
  - !ConstantPruningModifier
      params: __ALL_PRUNABLE__
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels)


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(found.predictions, axis=-1) == found.label_ids).mean())}


def main() -> None:
    torch.manual_seed(0)
    digits: Any = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    rows = [{"pixels": images[i], "labels": labels[i]} for i in order]
    train, test = rows[:1400], rows[1400:]

    def trained(name: str, model: nn.Module, recipe: str | None, teacher: nn.Module | None = None) -> Trainer:
        args = TrainingArguments(
            f"runs/{name}",
            num_train_epochs=8,
            learning_rate=1e-2,
            per_device_train_batch_size=32,
            save_strategy="no",
        )
        trainer = Trainer(
            model=model,
            model_state_path=None,
            recipe=recipe,
            teacher=teacher,
            args=args,
            train_dataset=train,
            eval_dataset=test,
            compute_metrics=accuracy,
        )
        trainer.train()
        trainer.save_model(f"models/{name}")
        return trainer

    dense = Net()
    print(f"dense accuracy {trained('dense', dense, None).evaluate()['eval_accuracy']:.4f}")
    sparse = Net()
    print(f"sparse accuracy {trained('sparse', sparse, RECIPE, dense).evaluate()['eval_accuracy']:.4f}")

    manager = ScheduledModifierManager.from_yaml(KEEP)
    steps = len(train) // 50
    optimizer = manager.modify(sparse, torch.optim.SGD(sparse.parameters(), lr=0.01), steps_per_epoch=steps)
    for step in range(steps):
        part = train[step * 50 : (step + 1) * 50]
        optimizer.zero_grad()
        logits = sparse(torch.stack([row["pixels"] for row in part]))
        nn.functional.cross_entropy(logits, torch.stack([row["labels"] for row in part])).backward()
        optimizer.step()
    manager.finalize(sparse)
    zeros = [float((layer.weight == 0).float().mean()) for layer in sparse.layers if isinstance(layer, nn.Linear)]
    print(f"zeros after one more epoch by hand: {', '.join(f'{share:.3f}' for share in zeros)}")


if __name__ == "__main__":
    main()
