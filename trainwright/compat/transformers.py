"""Our Trainer underneath libraries that build on transformers': ``import trainwright.compat.transformers`` before them.

From then on, in this process, ``transformers.Trainer``, ``Seq2SeqTrainer`` and their ``TrainingArguments`` are ours, so
that TRL's, sentence-transformers' or your own subclasses of them train with this loop. ``trainwright run script.py``
does the same for a script that stays as it is, and for the processes it starts. :func:`close` gives the names back,
:func:`open_door` takes them again.

>>> import trainwright.compat.transformers as door
>>> from transformers import Trainer
>>> Trainer.__mro__[1]
<class 'trainwright.trainer.trainer.Trainer'>
>>> door.close()
>>> from transformers import Trainer
>>> Trainer.__module__
'transformers.trainer'
"""

from trainwright.compat.transformers_door import close, is_open, open_door

__all__ = ["close", "is_open", "open_door"]

open_door()
