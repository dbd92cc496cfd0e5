"""What the documentation says of engines is what the tests show."""

from __future__ import annotations

from pathlib import Path

from tests.engines.contract.table import rows


def test_the_table_in_the_documentation_is_that_of_the_tests() -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
    assert "\n".join(rows()) in page, "python -m tests.engines.contract.table prints it"
