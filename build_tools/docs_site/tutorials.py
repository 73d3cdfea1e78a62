"""Tutorials: the blocks of a page, the minutes that it takes, and the notebooks that are made of two of them.

``python -m build_tools.docs_site.tutorials`` writes the notebooks of ``examples/notebooks`` that are tutorials.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "tutorials"
NOTEBOOKS: Final = ROOT / "examples" / "notebooks"
#: Tutorials that are notebooks, too, by the names of their pages.
AS_NOTEBOOKS: Final = ("private-density", "three-devices")

#: A block of code of a page. A comment before it makes it a file of that name, or says that its numbers are others in
#: each run, because noise and ids are random.
BLOCK: Final = re.compile(
    r"(?:<!-- (?:file: (?P<file>\S+)|(?P<differs>numbers differ)) -->\n)?"
    r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^ *```\n?",
    re.DOTALL | re.MULTILINE,
)
#: The sentence by which a page stops the service of the first terminal.
STOP: Final = "Stop the service with Ctrl-C."
_READ: Final = 200  # words a minute
_TYPED: Final = 40 * 5  # characters a minute: words of five
_SERVES: Final = "hushsum serve "


def commands_of(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, as one line, with the lines that are shown under it."""
    for part in re.split(r"^ *\$ ", re.sub(r" \\\n *", " ", block), flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, [line.strip() for line in lines if line.strip()]


def minutes(text: str) -> tuple[float, float]:
    """Minutes that a page takes to read, at 200 words a minute, and to type, at 40 words of five letters a minute.

    Commands, Python and files are typed; all else is read: sentences, tables, and what commands print.
    """
    typed, shown = 0, ""
    for block in BLOCK.finditer(text):
        if block["kind"] == "console":
            for command, lines in commands_of(block["text"]):
                typed += len(command)
                shown += " ".join(lines) + "\n"
        elif block["file"] or block["kind"] == "python":
            typed += len(block["text"])
        else:
            shown += block["text"]
    prose = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", BLOCK.sub("", text))
    words = len(re.findall(r"\S*\w\S*", prose + shown))
    return words / _READ, typed / _TYPED


def notebook(text: str) -> dict[str, Any]:
    """The notebook of a page: its sentences, and its blocks as cells, without what they show.

    A cell writes a file, runs commands, or runs Python. What serves runs in the background until the page stops it,
    which is after its last block.
    """
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        if not (source := source.strip("\n")):
            return
        code: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
        lines = source.splitlines(keepends=True)
        cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines} | code)

    end, prose = 0, ""
    for block in BLOCK.finditer(text):
        prose += text[end : block.start()]
        end = block.end()
        if block["kind"] == "text":
            prose += block[0] if "pip install" in block["text"] else ""
            continue
        add("markdown", _for_notebooks(prose))
        prose = ""
        if block["file"]:
            add("code", f"%%writefile {block['file']}\n{block['text']}")
        elif block["kind"] == "python":
            add("code", block["text"])
        else:
            commands = [command for command, _ in commands_of(block["text"])]
            if commands[0].startswith(_SERVES):
                add("code", f"%%bash --bg --proc service\nexec {commands[0]}")
            else:
                add("code", "\n".join(f"!{command}" for command in commands))
    before, stop, after = (prose + text[end:]).partition(STOP)
    add("markdown", _for_notebooks(before))
    if stop:
        add("markdown", "Stop the service:")
        add("code", "service.terminate()")
    add("markdown", _for_notebooks(after))
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _for_notebooks(prose: str) -> str:
    """Sentences with links that lead from the folder of notebooks to the pages."""
    linked = re.sub(r"\]\((?!https?:|#|[\w-]+\.png\))([^)]+)\)", r"](../../docs/tutorials/\1)", prose)
    return linked.replace("../../docs/tutorials/../", "../../docs/")


def notebook_file(name: str) -> str:
    """The text of the notebook of a tutorial."""
    made = notebook((FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for tutorial in AS_NOTEBOOKS:
        (NOTEBOOKS / f"{tutorial}.ipynb").write_text(notebook_file(tutorial), encoding="utf-8")
