"""How Sphinx builds the web site: `make site`. Reads nothing but the pages, and needs no network.

The source folder is the repository's root, so that README and CONTRIBUTING are pages too, and a link that leads to a
file on a code host leads to the same file here. The pages stay plain Markdown: the tree of contents is made from the
lists of links in docs/index.md and docs/decisions/README.md, and a page that neither names is a warning.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

project = "ADLRO"
author = "ADLRO's authors"
# Without a date, so that the same pages make the same site.
project_copyright = "ADLRO's authors, Apache-2.0"

extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/**.md"]
# Folders that are not searched for pages.
exclude_patterns = [".*", "node_modules", "adlro", "services", "tests", "build", "dist", "out", "third_party", "protos"]
root_doc = "docs/index"

# Links to headings work as on code hosts, down to this depth.
myst_heading_anchors = 6
highlight_language = "none"
# Quotes and dashes stay as they are typed: `--option` must not become a dash.
smartquotes = False

html_theme = "furo"
html_title = "ADLRO"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

# Pages whose lists of links are the tree of contents: one branch for each heading with links below it.
LISTS = (root_doc, "docs/decisions/README")
PICTURES = "docs/page"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")


def add_tree_of_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Puts a hidden toctree after each section of a page of lists."""
    if page not in LISTS:
        return
    branches = []
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE)[page == root_doc :]:
        caption = f":caption: {section.splitlines()[0]}\n" if page == root_doc else ""
        named = [f"{text.replace('`', '')} <{target}>" for text, target in _LINK.findall(section)]
        # Numbers alone name no decision: there the page's own title does.
        entries = named if page == root_doc else [target for _, target in _LINK.findall(section)]
        if entries:
            branches.append("\n".join(["```{toctree}", f":hidden:\n{caption}", *entries, "```\n"]))
    source[0] += "\n" + "\n".join(branches)


def show_folders_as_text(_app: Sphinx, tree: nodes.document) -> None:
    """A link to a folder of the repository, which has no page here, becomes its text; any other dead one stays dead."""
    folder = Path(tree["source"]).parent
    for link in list(tree.findall(addnodes.pending_xref)):
        if not link["refdomain"] and (folder / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Copies the pictures of pages in HTML (`<picture>`: one for light, one for dark), which Sphinx does not follow."""
    pictures = Path(app.srcdir) / PICTURES
    if error is None and app.builder.format == "html" and pictures.is_dir():
        shutil.copytree(pictures, Path(app.outdir) / PICTURES, dirs_exist_ok=True)


def lead_to_the_first_page(app: Sphinx, error: Exception | None) -> None:
    """The site's root leads to its first page."""
    if error is None and app.builder.format == "html":
        first = f"{root_doc}.html"
        page = f'<!doctype html><title>ADLRO</title><meta http-equiv="refresh" content="0; url={first}">'
        (Path(app.outdir) / "index.html").write_text(f'{page}<a href="{first}">ADLRO</a>\n', encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.connect("source-read", add_tree_of_contents)
    app.connect("doctree-read", show_folders_as_text)
    app.connect("build-finished", copy_pictures)
    app.connect("build-finished", lead_to_the_first_page)
