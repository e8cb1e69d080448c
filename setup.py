"""The packages, which setup.cfg cannot name: those found in dlemu/, and two that lie beside it."""

from setuptools import find_packages, setup

# Git's links in dlemu/ lead to the two; an sdist has no links.
BESIDE = {"dlemu.datagen", "dlemu.workloads"}

setup(packages=sorted({*find_packages(include=["dlemu", "dlemu.*"])} | BESIDE))
