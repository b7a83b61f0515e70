"""Waiting for a condition."""

from __future__ import annotations

import pytest

from sluiceway_lab.load.polling import until
from sluiceway_lab.load.replies import LoadError


async def test_first_true_value_is_returned() -> None:
    values = iter([0, 0, 3, 4])

    async def look() -> int:
        return next(values)

    assert await until(look, "a number", limit_s=60.0, pause_s=0.0) == 3


async def test_limit_is_an_error_that_names_the_condition() -> None:
    async def look() -> bool:
        return False

    with pytest.raises(LoadError, match="^waited 0 s in vain for a miracle$"):
        await until(look, "a miracle", limit_s=0.0, pause_s=0.0)
