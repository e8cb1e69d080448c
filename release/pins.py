"""Renew constraints.txt: the newest versions that all documented installs accept together.

    python -m release.pins [--keep NAME ...]

The oldest Python decides, for its versions serve the newer ones; what only a newer one asks for is
added. --keep leaves the pins of some packages as they are.

Not pinned is what PyTorch's build for Linux asks for: CUDA's libraries and Triton follow from the
version of torch, and builds for CPUs have none of them. Nor is what DALI asks for of NVIDIA's.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from release.pip import PINS, build, canonical, interpreters, resolve, user_environment
from release.relay import relayed

WANTED = "test,dali-cuda13"
NOT_PINNED = {"dlemu", "pip", "setuptools"}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.pins", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--keep", nargs="+", default=[], metavar="NAME")
    kept = {canonical(name) for name in parser.parse_args(words).keep}
    old = dict(line.split("==") for line in PINS.read_text().split())
    fixed = [f"{name}=={version}" for name, version in old.items() if canonical(name) in kept]
    found: dict[str, tuple[str, str]] = {}
    environment = user_environment()
    pythons = interpreters()
    relay = relayed(environment, {}, [*pythons])
    with tempfile.TemporaryDirectory() as folder, relay as environment:
        _, wheel = build(Path(folder), environment)
        for version, python in pythons.items():
            bound = Path(folder) / "bound.txt"
            lines = [*fixed, *(f"{name}=={number}" for name, number in found.values())]
            bound.write_text("\n".join(lines))
            words = ["--ignore-installed", "-c", str(bound), f"{wheel}[{WANTED}]"]
            done = resolve(words, python, environment)
            if done.report is None:
                print(f"Python {version}:\n{done.said}", file=sys.stderr)
                return 1
            items = [item["metadata"] for item in done.report["install"]]
            follow = following(items) | NOT_PINNED
            for item in items:
                if (name := canonical(item["name"])) not in follow:
                    found.setdefault(name, (item["name"], item["version"]))
    new = {name: f"{told}=={number}" for name, (told, number) in found.items()}
    before = {canonical(name): f"{name}=={version}" for name, version in old.items()}
    for name in sorted(new.keys() | before.keys()):
        was, now = (pins.get(name, "").partition("==")[2] or "-" for pins in (before, new))
        if was != now:
            print(f"{name}: {was} -> {now}")
    PINS.write_text("".join(f"{line}\n" for line in sorted(new.values(), key=str.lower)))
    return 0


def following(items: list[dict[str, Any]]) -> set[str]:
    """Return the names of what torch asks for on one platform, and of NVIDIA's that DALI asks for.

    With them goes what they ask for in turn.

    Args:
        items: the metadata of each package, as pip reports it.
    """
    asks = {canonical(item["name"]): item.get("requires_dist", ()) for item in items}
    found: set[str] = set()
    waiting = [each for each in asks.get("torch", ()) if "platform_system" in each]
    dali = (requires for name, requires in asks.items() if name.startswith("nvidia-dali-"))
    waiting += [each for requires in dali for each in requires if each.startswith("nvidia-")]
    while waiting:
        name, extras = _asked(waiting.pop())
        if name in asks and name not in found:
            found.add(name)
            waiting += [each for each in asks[name] if _applies(each, extras)]
    return found


def _asked(requirement: str) -> tuple[str, set[str]]:
    """Return name and extras: of `a[b,c]==1; d`, a and {b, c}."""
    name, extras = re.findall(r"^([\w.-]+)(?:\s*\[([^]]*)\])?", requirement)[0]
    return canonical(name), {each.strip() for each in extras.split(",")}


def _applies(requirement: str, extras: set[str]) -> bool:
    needed = re.findall(r"extra == [\"']([^\"']+)", requirement)
    return not needed or bool(extras & set(needed))


if __name__ == "__main__":
    sys.exit(main())
