"""The one way back to the Trainer: methods of it that users override, looked up when they are called.

``setup.hooks()`` is the Trainer, for nothing but that. A subclass's method acts, and one that somebody puts on the
instance before or during a training. A method of the Trainer itself calls the plain function that does its work, never
its own hook, so ``super()`` leads to an end.
"""

from __future__ import annotations

from trainwright.config.origin import OURS, library_of


def is_overridden(hooks: object, name: str) -> bool:
    """Return True when the method ``name`` is not the Trainer's own, by subclassing or by assignment."""
    return name in vars(hooks) or sum(name in vars(kind) for kind in type(hooks).__mro__) > 1


def is_users_own(hooks: object, name: str) -> bool:
    """Return True when the method ``name`` was written outside this package."""
    return name in vars(hooks) or library_of(getattr(type(hooks), name)) != OURS


def is_ours(thing: object) -> bool:
    """Return True when the class of ``thing`` was written in this package, and does not call somebody else's code."""
    return library_of(type(thing)) == OURS and not getattr(thing, "runs_users_code", False)
