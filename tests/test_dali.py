"""DALI keeps the contract of loaders, by each of its ways."""

import pytest

pytest.importorskip("nvidia.dali", reason="needs DALI: pip install 'dlemu[dali-cuda13]'")

from tests.loader_contract import Loaders


class TestDali(Loaders):
    name = "dali"
