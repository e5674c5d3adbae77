"""What `make docs` adds to the pages: the notebook as a page, the papers' figures as a page, and llms.txt, the list of all pages for language models."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from graphmill.jobs import reproduce

FIGURES = "guides/reproduce.md"
NOTEBOOK, PAGE = "guides/notebook.ipynb", "guides/notebook.md"
_described: dict[str, str] = {}


def as_markdown(notebook: str) -> str:
    """The notebook's cells as one page: text as it is, code as blocks, and a link to the file itself."""
    pieces = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        pieces.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    title, *rest = pieces
    return "\n\n".join([title, "This page is [a notebook](notebook.ipynb): download it and run it.", *rest]) + "\n"


def on_files(files: Files, config: Any) -> Files:
    text = (Path(config["docs_dir"]) / NOTEBOOK).read_text()
    files.append(File.generated(config, PAGE, content=as_markdown(text)))
    files.append(File.generated(config, FIGURES, content=reproduce.page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to the notebook lead to its page; a page's first sentence describes it in llms.txt."""
    paragraphs = [part for part in markdown.split("\n\n") if part[:1].isalnum() or part.startswith("`")]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join([*paragraphs, page.title or ""][0].split()))
    _described[page.file.src_uri] = re.split(r"(?<=[.:?]) (?=[A-Z`])", text, maxsplit=1)[0]
    return markdown if page.file.src_uri == PAGE else markdown.replace("notebook.ipynb)", "notebook.md)")


def on_nav(nav: Any, config: Any, files: Files) -> Any:
    config["extra"]["nav"] = nav
    return nav


def on_post_build(config: Any) -> None:
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for item in config["extra"]["nav"].items:
        lines += [f"## {item.title}", ""]
        for page in [item] if item.is_page else item.children:
            lines.append(f"- [{page.title}]({page.url or 'index.html'}): {_described[page.file.src_uri]}")
        lines.append("")
    (Path(config["site_dir"]) / "llms.txt").write_text("\n".join(lines))
