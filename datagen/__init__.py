"""Datasets: their bytes, how they are written, the manifest, how they are verified and found."""

from dlemu.datagen.assemble import Content as Content
from dlemu.datagen.manifest import Manifest as Manifest
from dlemu.datagen.manifest import read_manifest as read_manifest
from dlemu.datagen.survey import survey as survey
from dlemu.datagen.verify import Fault as Fault
from dlemu.datagen.verify import verify as verify
from dlemu.datagen.write import generate as generate
