"""Datasets: their bytes, how they are written, the manifest, and their verification."""

from dlemu.datagen.content import Content
from dlemu.datagen.manifest import Manifest, Recipe, read_manifest
from dlemu.datagen.survey import Found, survey
from dlemu.datagen.verify import Fault, verify
from dlemu.datagen.work import Progress
from dlemu.datagen.write import generate

__all__ = [
    "Content",
    "Fault",
    "Found",
    "Manifest",
    "Progress",
    "Recipe",
    "generate",
    "read_manifest",
    "survey",
    "verify",
]
