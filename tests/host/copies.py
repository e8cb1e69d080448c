"""Copies of /proc and /sys: what the kernel would show of a host's mounts and drives."""

from pathlib import Path

from dlemu.host.devices import devices_under

STAT = "   26742     8153  2097258     3857     5393    37764  2775368     4609        7     3016"
STAT += "     8529      781        0    41472       43      644       18\n"


class Host:
    """A host of files below a folder, in "proc" and "sys"; paths are those within the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc, self.sys = folder, folder / "proc", folder / "sys"
        self.proc.mkdir(parents=True)
        self.lines: list[str] = []

    def write(self, path: Path | str, text: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def link(self, path: Path | str, target: Path | str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).symlink_to(self.folder / target)

    def mount(self, point: Path | str, number: str, kind: str = "ext4", more: str = "") -> None:
        """Mount on a point; `more` is "source options"."""
        line_id = 100 + len(self.lines)
        parent = 1 if not self.lines else 100
        more = more or "/dev/any rw"
        self.lines.append(f"{line_id} {parent} {number} / {point} rw shared:1 - {kind} {more}")
        self.write("proc/self/mountinfo", "\n".join(self.lines) + "\n")

    def disk(self, name: str, number: str, *slaves: str, within: str = "") -> Path:
        folder = self.sys / "devices" / within / name
        (folder / "slaves").mkdir(parents=True)
        self.write(folder / "dev", f"{number}\n")
        self.write(folder / "stat", STAT)
        if within:
            self.write(folder / "partition", "1\n")
        self.link(f"sys/dev/block/{number}", folder)
        self.link(f"sys/class/block/{name}", folder)
        for slave in slaves:
            self.link(folder / "slaves" / slave, (self.sys / "class/block" / slave).resolve())
        return folder

    def loop(self, name: str, number: str, image: Path) -> None:
        """Add a device over a file."""
        self.write(self.disk(name, number) / "loop" / "backing_file", f"{image}\n")

    def names(self, folder: Path | str) -> list[str]:
        """Return the names of the drives under a folder."""
        return [each.name for each in devices_under(Path(folder), proc=self.proc, sys=self.sys)]
