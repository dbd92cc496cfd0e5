"""The ``profile=`` argument."""

import re

_STEPS = re.compile(r"(?:steps?\s+)?(\d+)(?:\s*-\s*(\d+))?")


def parse_profile(text: str) -> tuple[int, int]:
    """First and last step to profile, counted from 1: ``"steps 5-10"`` gives ``(5, 10)``, ``"step 7"`` ``(7, 7)``."""
    match = _STEPS.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f'profile={text!r} is not understood; write for example profile="steps 5-10".')
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if not 1 <= first <= last:
        raise ValueError(f"profile={text!r}: steps count from 1 and the last may not come before the first.")
    return first, last
