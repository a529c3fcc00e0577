"""How ``make docs`` builds the site: Sphinx, Markdown by MyST, notebooks as they are stored.

``make docs EXECUTE=force`` executes the notebooks on the way.
"""

import inspect
import os
import re
from typing import Any

import tricouple

project = "tricouple"
author = "The tricouple authors"
release = tricouple.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["_build", "assets/*.md"]

html_theme = "pydata_sphinx_theme"
html_title = "tricouple"
html_theme_options = {
    "navbar_center": [],  # all pages are in the sidebar
    "navigation_depth": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_context = {"default_mode": "auto"}
html_sidebars = {"**": ["site-tree"]}
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
mathjax3_config = {"chtml": {"matchFontHeight": False, "scale": 1.06}}  # beside sans serif text
nb_execution_mode = "off"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True

autosummary_generate = False
# Methods of losses that the library calls.
internal = "extra_repr, of_call, run, one_product, compute, compute_both"
autodoc_default_options = {"members": True, "show-inheritance": False, "exclude-members": internal}
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


def link_files(app: Any, page: str, source: list[str]) -> None:
    """Make links to Markdown files outside the site downloads, not links to missing pages."""
    source[0] = re.sub(r"\]\(((?:\.\./results|assets)/[^)#]*\.md)\)", r"](path:\1)", source[0])


def show_arguments(app: Any, what: str, name: str, found: Any, *others: Any) -> Any:
    """Show the arguments of a loss, whose ``__new__`` takes any, so as to name wrong ones."""
    _, signature, returned = others
    if what == "class" and (signature or "").startswith("(*args"):
        arguments = inspect.signature(found).parameters.values()
        plain = [argument.replace(annotation=argument.empty) for argument in arguments]
        return str(inspect.Signature(plain)), returned
    return None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_files)
    app.connect("html-page-context", open_elsewhere)
    app.connect("autodoc-process-signature", show_arguments)
