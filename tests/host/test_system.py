"""What a host is and how it is set, in small copies of /proc and /sys."""

import re
from pathlib import Path

from dlemu.host.system import DriveSettings, find_system
from tests.host.test_devices import Host


def test_a_host_is_described(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    data = tmp_path / "data"
    data.mkdir()
    host.mount("/", "8:0")
    host.mount(data, "259:0", "xfs", "/dev/nvme0n1 rw,noquota")
    line = host.lines[-1].replace(" rw shared:1 - ", " rw,noatime shared:1 - ")
    (host.proc / "self" / "mountinfo").write_text(f"{host.lines[0]}\n{line}\n")
    disk = host.disk("nvme0n1", "259:0")
    for name, text in {
        "device/model": "SAMSUNG  MZQL \n",
        "device/firmware_rev": "GDC5602Q\n",
        "queue/scheduler": "none [mq-deadline] kyber\n",
        "queue/read_ahead_kb": "128\n",
    }.items():
        (disk / name).parent.mkdir(exist_ok=True)
        (disk / name).write_text(text)
    for cpu, governor in enumerate(("powersave", "performance", "powersave")):
        file = host.sys / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
        file.parent.mkdir(parents=True)
        file.write_text(f"{governor}\n")
    (host.proc / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n" * 3)
    (host.proc / "meminfo").write_text("MemTotal:  1024 kB\n")

    found = find_system(data, proc=host.proc, sys=host.sys)

    drive = DriveSettings(
        name="nvme0n1",
        model="SAMSUNG MZQL",
        firmware="GDC5602Q",
        scheduler="mq-deadline",
        read_ahead_kib="128",
    )
    assert found.drives == (drive,)
    assert found.mount_options == "rw,noatime,noquota"
    assert (found.cpu, found.governor) == ("Some CPU @ 2 GHz", "performance, powersave")
    assert found.memory_bytes == 1 << 20


def test_an_overlay_s_layers_are_no_option(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    host.mount("/", "0:50", "overlay", r"overlay rw,lowerdir=/a\134,b:/c,upperdir=/d,xino=off")
    options = find_system(tmp_path, proc=host.proc, sys=host.sys).mount_options
    assert options == "rw,xino=off"


def test_a_host_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    found = find_system(tmp_path, proc=tmp_path / "no", sys=tmp_path / "no")
    assert (found.cpu, found.governor, found.mount_options, found.drives) == ("", "", "", ())
    assert found.memory_bytes == 0 and re.fullmatch(r"\S+", found.kernel)
