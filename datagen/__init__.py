"""Datasets: their bytes, how they are written, the manifest, how they are verified and found.

May import dataset, formats, storage, workload and world.
"""

from dlemu.datagen.content import Content
from dlemu.datagen.manifest import Manifest, read_manifest
from dlemu.datagen.recipe import Recipe
from dlemu.datagen.survey import Found, survey
from dlemu.datagen.verify import Fault, verify
from dlemu.datagen.work import FileProgress
from dlemu.datagen.write import generate

__all__ = [
    "Content",
    "Fault",
    "FileProgress",
    "Found",
    "Manifest",
    "Recipe",
    "generate",
    "read_manifest",
    "survey",
    "verify",
]
