"""The GPU nearest to a drive, its NUMA node and its PCIe link, from a copy of /sys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlemu.host.place import Attachment, cpus_of_node, find_attachment

NEAR, SAME_NODE, FAR = "0000:82:00.0", "0000:c1:00.0", "0000:3b:00.0"


class Server:
    """Two sockets: nvme0 and a GPU below one switch, another GPU on each socket."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.proc.mkdir()
        for node, cpus in ((0, "0-1,8"), (1, "2-3")):
            self.write(f"devices/system/node/node{node}/cpulist", cpus)
        switch = "pci0000:80/0000:80:01.0/0000:81:00.0"
        self.function(f"{switch}/0000:82:00.0", 1)
        self.function("pci0000:c0/0000:c0:01.0/0000:c1:00.0", 1)
        self.function("pci0000:3a/0000:3a:00.0/0000:3b:00.0", 0)
        self.drive("nvme0n1", self.function(f"{switch}/0000:83:00.0", 1, "16.0 GT/s PCIe", 4))

    def write(self, path: str, text: str) -> None:
        (self.sys / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sys / path).write_text(f"{text}\n")

    def function(self, path: str, node: int, speed: str = "Unknown", width: int = 0) -> str:
        """Add a PCI function; return its folder."""
        facts = {"numa_node": node, "current_link_speed": speed, "current_link_width": width}
        for name, value in facts.items():
            self.write(f"devices/{path}/{name}", str(value))
        self.link(f"bus/pci/devices/{Path(path).name}", f"devices/{path}")
        return f"devices/{path}"

    def drive(self, name: str, function: str) -> None:
        (self.sys / function / "nvme" / name).mkdir(parents=True)
        self.link(f"class/block/{name}", f"{function}/nvme/{name}")

    def link(self, path: str, target: str) -> None:
        (self.sys / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sys / path).symlink_to(self.sys / target)

    def attachment(self, name: str, *gpus: str) -> Attachment:
        return find_attachment(Path("/dev", name), gpus, proc=self.proc, sys=self.sys)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(Path, "is_block_device", lambda path: path.parent == Path("/dev"))
    yield Server(tmp_path)


@pytest.mark.parametrize(
    ("gpus", "nearest"),
    [
        ([FAR, SAME_NODE, NEAR], 2),  # below the same switch
        ([FAR, SAME_NODE], 1),  # on the same socket
        ([FAR], 0),
        ([], None),
    ],
)
def test_the_nearest_gpu_shares_most_of_the_way(
    server: Server, gpus: list[str], nearest: int | None
) -> None:
    found = server.attachment("nvme0n1", *gpus)
    assert (found.gpu, found.node) == (nearest, 1)
    assert cpus_of_node(1, sys=server.sys) == [2, 3]
    assert cpus_of_node(0, sys=server.sys) == [0, 1, 8]


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [
        ("5.0 GT/s PCIe", 2, 1.0),
        ("16.0 GT/s PCIe", 4, 7.877),
        ("64.0 GT/s PCIe", 4, 30.25),
        ("Unknown", 4, None),
    ],
)
def test_a_link_carries_what_its_coding_leaves(
    server: Server, speed: str, width: int, gigabytes: float | None
) -> None:
    server.drive("nvme7n1", server.function("pci0000:80/0000:90:00.0", 1, speed, width))
    (rate,) = server.attachment("nvme7n1").links.values()
    assert rate == (None if gigabytes is None else pytest.approx(gigabytes * 1e9, rel=1e-3))


def test_a_drive_of_several_paths_is_where_its_first_path_is(server: Server) -> None:
    (server.sys / "devices/virtual/nvme-subsystem/nvme2n1").mkdir(parents=True)
    server.link("class/block/nvme2n1", "devices/virtual/nvme-subsystem/nvme2n1")
    server.drive("nvme2c0n1", server.function("pci0000:3a/0000:3a:02.0", 0, "32.0 GT/s PCIe", 4))
    found = server.attachment("nvme2n1", NEAR, FAR)
    assert (found.gpu, found.node, found.kind) == (1, 0, "PCIe link")
    assert found.links["nvme2n1"] == pytest.approx(15.75e9, rel=1e-3)


def test_what_is_on_no_bus_has_no_node_and_no_gpu(server: Server, tmp_path: Path) -> None:
    (server.sys / "devices/virtual/block/zram0").mkdir(parents=True)
    server.link("class/block/zram0", "devices/virtual/block/zram0")
    assert server.attachment("zram0", NEAR) == Attachment({"zram0": None})
    remote = find_attachment(tmp_path, proc=server.proc, sys=server.sys)
    assert (remote.kind, remote.node, remote.gpu) == ("network", None, None)
