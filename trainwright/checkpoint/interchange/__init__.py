"""Checkpoints of other libraries, read into ours and written from ours.

reading.py            pickles, through torch's restricted unpickler and no other way
from_transformers.py  a checkpoint-N of transformers' Trainer
from_lightning.py     a .ckpt of Lightning
importing.py          either of them as a checkpoint of ours, written like any other
continuing.py         what a resume has to work out that the file did not say: names, groups, the place in the data
to_transformers.py    ours as a folder that transformers' Trainer resumes from
"""
