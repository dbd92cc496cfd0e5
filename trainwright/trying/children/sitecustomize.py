"""Runs first in processes that a tried script starts: they do not train."""

from trainwright.trying.refusing import REFUSED

REFUSED.open()
