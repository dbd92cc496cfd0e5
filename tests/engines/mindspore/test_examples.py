"""The examples in the docstrings run."""

import doctest
import importlib

import pytest

pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore


@pytest.mark.parametrize("name", ["arrays", "operations.types", "cells"])
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(f"trainwright.engines.mindspore.{name}")
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
