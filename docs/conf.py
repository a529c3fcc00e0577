"""How ``make docs`` builds the site: Sphinx, Markdown by MyST, notebooks executed on the way."""

import os
from pathlib import Path

import tricouple

# Notebooks run in processes of their own, in their own folders, and import forces.py from here.
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

project = "tricouple"
author = "The tricouple authors"
release = tricouple.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "assets/*.md"]
suppress_warnings = ["myst.xref_missing"]  # tables in assets are no pages; tests check all links

html_theme = "pydata_sphinx_theme"
html_title = "tricouple"
html_theme_options = {
    "navigation_depth": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": []}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True

autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "mixed"
