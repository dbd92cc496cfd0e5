"""The MindNLP door: ``import trainwright.compat.mindnlp`` where a script said ``import mindnlp``.

From then on ``TrainingArguments`` name MindSpore as their engine, ``from_pretrained`` understands ``ms_dtype``, and
``from transformers import Trainer`` gives scripts ours. No import of torch is redirected: models are transformers' own,
on current torch, and only gradients and updates are computed by MindSpore. :func:`close` undoes all of it,
:func:`open_door` does it again. ``trainwright.compat.mindnlp.engine`` has the names of MindNLP 0.4.

>>> from trainwright import TrainingArguments
>>> import trainwright.compat.mindnlp as door
>>> TrainingArguments("runs/example").engine
'mindspore'
>>> door.close()
>>> TrainingArguments("runs/example").engine
'torch'
"""

from trainwright.compat.mindnlp_door import close, open_door

__all__ = ["close", "open_door"]

open_door()
