"""How ``make docs`` builds the site: Sphinx, Markdown by MyST, notebooks executed on the way."""

import os
from pathlib import Path
from typing import Any

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

# Where the sources are hosted, as owner/name: then pages of notebooks can be opened elsewhere.
repository = os.environ.get("GITHUB_REPOSITORY", "")


def open_elsewhere(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Put links to Colab and Binder above a notebook."""
    if repository and page.startswith("notebooks/") and page != "notebooks/index":
        place = f"docs/{page}.ipynb"
        links = {
            "Colab": f"https://colab.research.google.com/github/{repository}/blob/main/{place}",
            "Binder": f"https://mybinder.org/v2/gh/{repository}/main?labpath={place}",
        }
        shown = " · ".join(f'<a href="{url}">{name}</a>' for name, url in links.items())
        context["body"] = f"<p>Open in {shown}</p>{context['body']}"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("html-page-context", open_elsewhere)
