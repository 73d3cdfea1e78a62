"""The list of texts that a user meets: it finds all kinds of them."""

from build_tools.texts import KINDS, Text, strings, texts

_SOURCE = '''
"""A module's docstring is not listed."""

def run(name, store):
    if not name:
        raise StoreError(f"store: {name} has no rows: {'all of ' + name} is gone")
    warnings.warn("the plan has no rows", PlanWarning)
    journal.info("stopped", plan=name)
    counter("hushsum_rows", "Rows stored")
    store.run("SELECT id FROM rows WHERE name = ?")
    return "plain words", "word"
'''


def test_each_text_is_listed_with_its_kind_and_line() -> None:
    assert strings(_SOURCE, "m.py") == [
        Text("m.py", 6, "error", "store: {name} has no rows: {'all of ' + name} is gone"),
        Text("m.py", 6, "error", "all of"),
        Text("m.py", 7, "warning", "the plan has no rows"),
        Text("m.py", 8, "log", "stopped [plan]"),
        Text("m.py", 9, "metric", "Rows stored"),
        Text("m.py", 11, "text", "plain words"),
    ]


def test_the_project_has_texts_of_every_kind() -> None:
    listed = texts()
    assert {text.kind for text in listed} == set(KINDS)
    assert listed == sorted(listed)
    assert any("hushsum serve --listen HOST:PORT" in text.words for text in listed if text.kind == "help")
    assert any(text.words.startswith("Release.kernel_sum:") for text in listed if text.kind == "docstring")
