"""A folder's storage and host, and the GPU nearest to a drive, from copies of /proc and /sys."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlemu.host.devices import memory_below
from dlemu.host.place import Attachment, cpus_of_node, find_attachment, find_connection, find_host
from tests.host.copies import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.disk("sda", "8:0")
    host.disk("sda2", "8:2", within="sda")
    host.disk("nvme0n1", "259:0")
    host.mount("/", "8:2")
    return host


@pytest.mark.parametrize(
    ("kind", "in_memory"), [("tmpfs", True), ("nfs4", False), ("fuse.sshfs", False)]
)
def test_memory_and_networks_have_no_drive(
    kind: str, in_memory: bool, host: Host, tmp_path: Path
) -> None:
    assert find_host(tmp_path, proc=host.proc, sys=host.sys)["is_root"]
    host.mount(tmp_path, "0:40", kind, "server:/export rw")
    found = find_host(tmp_path / "not" / "yet", proc=host.proc, sys=host.sys)
    assert (found["drives"], found["is_root"], found["in_memory"]) == ([], False, in_memory)
    assert found["source"] == "server:/export"


def test_an_nvme_drive_tells_its_transport_and_queues(host: Host, tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    remote.mkdir()
    host.mount(local, "259:0")
    for queue in range(7):
        (host.sys / "devices/nvme0n1/mq" / str(queue)).mkdir(parents=True)
    host.write("sys/devices/nvme0n1/device/transport", "tcp\n")
    connection = find_connection(local, proc=host.proc, sys=host.sys)
    assert connection == ("nvme0n1, tcp, 7 queues", 7)
    host.mount(remote, "0:40", "nfs4", "server:/export rw")
    assert find_connection(remote, proc=host.proc, sys=host.sys) is None


def test_a_loop_device_over_tmpfs_and_a_ram_disk_are_memory(host: Host, tmp_path: Path) -> None:
    """They count reads as a drive does, and no drive is read."""
    image = tmp_path / "memory" / "image"
    image.parent.mkdir()
    image.touch()
    host.mount("/data", "7:3", "ext4", "/dev/loop3 rw")
    host.loop("loop3", "7:3", image)
    names = ["nvme0n1", "loop3", "ram0", "zram1", "ramp0"]
    assert memory_below(names, proc=host.proc, sys=host.sys) == ["ram0", "zram1"]
    host.mount(image.parent, "0:30", "tmpfs", "tmpfs rw")
    seen = memory_below(names, proc=host.proc, sys=host.sys)
    assert seen == ["loop3 over tmpfs", "ram0", "zram1"]


def test_a_host_is_described(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    data = tmp_path / "data"
    data.mkdir()
    host.mount("/", "8:0")
    host.mount(data, "259:0", "xfs", "/dev/nvme0n1 rw,noquota")
    line = host.lines[-1].replace(" rw shared:1 - ", " rw,noatime shared:1 - ")
    host.write("proc/self/mountinfo", f"{host.lines[0]}\n{line}\n")
    disk = host.disk("nvme0n1", "259:0")
    for name, text in {
        "device/model": "SAMSUNG  MZQL \n",
        "device/firmware_rev": "GDC5602Q\n",
        "queue/scheduler": "none [mq-deadline] kyber\n",
        "queue/read_ahead_kb": "128\n",
    }.items():
        host.write(disk / name, text)
    for cpu, governor in enumerate(("powersave", "performance", "powersave")):
        host.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", f"{governor}\n")
    host.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n" * 3)

    found = find_host(data, proc=host.proc, sys=host.sys)

    (drive,) = found["drives"]
    assert tuple(drive.values()) == ("nvme0n1", "SAMSUNG MZQL", "GDC5602Q", 0, "mq-deadline", "128")
    assert found["mount_options"] == "rw,noatime,noquota"
    assert (found["cpu"], found["governor"]) == ("Some CPU @ 2 GHz", "performance, powersave")
    assert found["memory_bytes"] > 1 << 20


def test_an_overlay_s_layers_are_no_option(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    host.mount("/", "0:50", "overlay", r"overlay rw,lowerdir=/a\134,b:/c,upperdir=/d,xino=off")
    found = find_host(tmp_path, proc=host.proc, sys=host.sys)
    assert found["mount_options"] == "rw,xino=off"


def test_a_host_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    found = find_host(tmp_path, proc=tmp_path / "no", sys=tmp_path / "no")
    assert not any(found[name] for name in ("cpu", "governor", "file_system", "mount_options"))
    assert found["drives"] == [] and re.fullmatch(r"\S+", found["kernel"])


NEAR, SAME_NODE, FAR = "0000:82:00.0", "0000:c1:00.0", "0000:3b:00.0"


class Server(Host):
    """Two sockets: nvme0 and a GPU below one switch, another GPU on each socket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for node, cpus in ((0, "0-1,8"), (1, "2-3")):
            self.write(f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")
        switch = "pci0000:80/0000:80:01.0/0000:81:00.0"
        self.function(f"{switch}/0000:82:00.0", 1)
        self.function("pci0000:c0/0000:c0:01.0/0000:c1:00.0", 1)
        self.function("pci0000:3a/0000:3a:00.0/0000:3b:00.0", 0)
        self.drive("nvme0n1", self.function(f"{switch}/0000:83:00.0", 1, "16.0 GT/s PCIe", 4))

    def function(self, path: str, node: int, speed: str = "Unknown", width: int = 0) -> Path:
        """Add a PCI function; return its folder."""
        folder = self.sys / "devices" / path
        facts = {"numa_node": node, "current_link_speed": speed, "current_link_width": width}
        for name, value in facts.items():
            self.write(folder / name, f"{value}\n")
        self.link(f"sys/bus/pci/devices/{folder.name}", folder)
        return folder

    def drive(self, name: str, function: Path | str) -> None:
        """Add a drive below a PCI function or any other folder."""
        folder = self.sys / "devices" / function / "nvme" / name
        folder.mkdir(parents=True)
        self.link(f"sys/class/block/{name}", folder)

    def attachment(self, name: str, *gpus: str) -> Attachment:
        return find_attachment(Path("/dev", name), gpus, proc=self.proc, sys=self.sys)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(Path, "is_block_device", lambda path: path.parent == Path("/dev"))
    yield Server(tmp_path)


def test_the_nearest_gpu_shares_most_of_the_way(server: Server) -> None:
    """Below the same switch, on the same socket, on the other one."""
    for gpus, nearest in (([FAR, SAME_NODE, NEAR], 2), ([FAR, SAME_NODE], 1), ([FAR], 0)):
        found = server.attachment("nvme0n1", *gpus)
        assert (found.gpu, found.node) == (nearest, 1)
    assert server.attachment("nvme0n1").gpu is None
    assert [cpus_of_node(node, sys=server.sys) for node in (0, 1)] == [[0, 1, 8], [2, 3]]


def test_a_link_carries_what_its_coding_leaves(server: Server) -> None:
    links = [("5.0 GT/s PCIe", 2, 1.0), ("16.0 GT/s PCIe", 4, 7.877), ("64.0 GT/s PCIe", 4, 30.25)]
    for number, (speed, width, gigabytes) in enumerate(links, 1):
        function = server.function(f"pci0000:80/0000:9{number}:00.0", 1, speed, width)
        server.drive(f"nvme{number}n1", function)
        (rate,) = server.attachment(f"nvme{number}n1").links.values()
        assert rate == pytest.approx(gigabytes * 1e9, rel=1e-3)
    server.drive("nvme9n1", server.function("pci0000:80/0000:99:00.0", 1, "Unknown", 4))
    assert server.attachment("nvme9n1").links == {"nvme9n1": None}


def test_a_drive_of_several_paths_is_where_its_first_path_is(server: Server) -> None:
    server.drive("nvme2n1", "virtual")
    server.drive("nvme2c0n1", server.function("pci0000:3a/0000:3a:02.0", 0, "32.0 GT/s PCIe", 4))
    found = server.attachment("nvme2n1", NEAR, FAR)
    assert (found.gpu, found.node, found.kind) == (1, 0, "PCIe link")
    assert found.links["nvme2n1"] == pytest.approx(15.75e9, rel=1e-3)


def test_what_is_on_no_bus_has_no_node_and_no_gpu(server: Server, tmp_path: Path) -> None:
    server.drive("zram0", "virtual")
    assert server.attachment("zram0", NEAR) == Attachment({"zram0": None})
    remote = find_attachment(tmp_path, proc=server.proc, sys=server.sys)
    assert (remote.kind, remote.node, remote.gpu) == ("network", None, None)
