"""Bytes by the path that they took between storage and memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PathBytes:
    """Bytes by path, reads and writes together. p2pdma, nvidia_fs and compat are cuFile's paths."""

    p2pdma: int = 0
    nvidia_fs: int = 0
    compat: int = 0
    host: int = 0
    """Bytes that did not pass through cuFile; the code that read them counts them."""
    estimated: bool = False
    """Whether cuFile took several paths: it counts operations by path, but not bytes."""

    def __add__(self, other: "PathBytes") -> "PathBytes":
        return PathBytes(
            self.p2pdma + other.p2pdma,
            self.nvidia_fs + other.nvidia_fs,
            self.compat + other.compat,
            self.host + other.host,
            self.estimated or other.estimated,
        )

    @property
    def mode(self) -> str:
        """The path's name; several names are joined with "+"; "none" if nothing was read."""
        names = {
            "p2pdma": self.p2pdma,
            "nvidia-fs": self.nvidia_fs,
            "compat": self.compat,
            "host": self.host,
        }
        return "+".join(name for name, count in names.items() if count) or "none"
