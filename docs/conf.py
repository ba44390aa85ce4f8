"""Configuration of Sphinx: pages in MyST, and the API from numpydoc docstrings. `make docs` fails on warnings."""

from __future__ import annotations

import re
from pathlib import Path

import softargmax

project = "softargmax"
author = "softargmax contributors"
copyright = "2026, softargmax contributors"  # noqa: A001 (the name that Sphinx reads)
release = softargmax.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax", "numpydoc", "myst_parser"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autosummary_generate = True
autodoc_typehints = "none"  # the docstrings list the types, with shapes
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
add_module_names = False
html_theme = "alabaster"
html_theme_options = {
    "description": "The softmax family: accurate, reproducible, any array, any size.",
    "page_width": "1100px",
}

# Every public name must be listed in api.rst.
_api = (Path(__file__).parent / "api.rst").read_text(encoding="utf-8")
_listed = set(re.findall(r"^ {3}([\w.]+)$", _api, re.MULTILINE))
if _missing := {name for name in softargmax.__all__ if not name.startswith("_")} - _listed:
    raise RuntimeError(f"docs/api.rst: expected every public name, but {sorted(_missing)} are missing")
