"""Every loader keeps the contract."""

from tests.loader_contract import Loaders


class TestThreads(Loaders):
    name = "threads"


class TestPyTorch(Loaders):
    name = "pytorch"
