"""What a Trainer answers before it trains: what it will see, how large it is, which learning rate it takes."""

from __future__ import annotations

from trainwright.looking.batch import BatchView, show_batch
from trainwright.looking.found_rates import LearningRates
from trainwright.looking.rates import lr_find
from trainwright.looking.summary import Summary, summary
from trainwright.trainer.methods import Methods
from trainwright.trainer.start_up import leaves_at_once


class Beforehand(Methods):
    """Questions that change nothing."""

    @leaves_at_once("looking at the data")
    def show_batch(self, rows: int = 8) -> BatchView:
        """The first training batch as the model sees it: print it, or let a notebook show it.

        Text is decoded and what is trained of it (labels other than -100) is marked, images are as augmentation left
        them, tables are rows. The training still gets this batch, and the random numbers that it would have had.

        >>> import torch
        >>> from trainwright import Trainer, TrainingArguments
        >>> data = [(torch.tensor([float(i), 1.0]), torch.tensor(i % 2)) for i in range(8)]
        >>> args = TrainingArguments(
        ...     "runs/example", per_device_train_batch_size=4, train_sampling_strategy="sequential"
        ... )
        >>> print(Trainer(torch.nn.Linear(2, 2), args, train_dataset=data).show_batch(rows=2))
        The first batch: 4 samples
          inputs           4x2 float32, 0 to 3
          labels           4 int64, 0 to 1
            0  inputs [0, 1]  -> 0
            1  inputs [1, 1]  -> 1
               and 2 more
        """
        return show_batch(self._setup, rows)

    @leaves_at_once("looking at the model")
    def summary(self, depth: int = 2) -> Summary:
        """Layers, parameters, and about how many operations and how much memory a step takes; nothing is trained.

        ``depth`` is the number of levels below the outermost layers. The numbers are in its attributes too.

        >>> import torch
        >>> from trainwright import Trainer, TrainingArguments
        >>> args = TrainingArguments("runs/example", per_device_train_batch_size=4)
        >>> data = [(torch.ones(2), torch.tensor(0))] * 8
        >>> found = Trainer(torch.nn.Linear(2, 2), args, train_dataset=data).summary()
        >>> found.parameters, found.trained, found.flops_per_sample
        (6, 6, 16.0)
        """
        return summary(self._setup, depth)

    @leaves_at_once("looking for a learning rate")
    def lr_find(self, least: float = 1e-7, greatest: float = 1.0, steps: int = 100) -> LearningRates:
        """Train a copy with a rate that grows from ``least`` to ``greatest``, and say at which its loss falls fastest.

        It stops where the loss has grown to four times its least. Weights, optimizer, data and random numbers of this
        Trainer stay as they are, so a training afterwards is the same to the last bit; for a while there are two
        models in memory. Callbacks are left out.

        >>> import torch
        >>> from trainwright import Trainer, TrainingArguments
        >>> data = [(torch.tensor([i / 8, 1.0]), torch.tensor(i % 2)) for i in range(16)]
        >>> found = Trainer(torch.nn.Linear(2, 2), TrainingArguments("runs/example"), train_dataset=data).lr_find()
        >>> len(found.rates) == len(found.losses)
        True
        """
        return lr_find(self._setup, least, greatest, steps)
