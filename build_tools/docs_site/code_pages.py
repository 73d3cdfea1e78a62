"""The references of the Python interface, of its errors and of the commands, from the code."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any, Final

import click

from hushsum.errors import HushsumError, HushsumWarning
from hushsum_cli.main import cli

#: The public modules, and those of what their functions take and return.
_MODULES: Final = (
    *("hushsum", "hushsum.estimators", "hushsum.statistics", "hushsum.comparison", "hushsum.parameters"),
    *("edge_client", "edge_client.blocking"),
)
#: The beginnings of names of classes that have methods of bases that are not public.
_WITH_BASES: Final = ("hushsum.estimators.", "hushsum.Release", "hushsum.Span")
_PACKAGES: Final = ("hushsum", "edge_client", "hushsum_proto")
_HELP_WIDTH: Final = 100


def interface() -> str:
    """Markdown with autodoc's directives: each public name of each public module."""
    return "\n".join(line for module in _MODULES for line in _module(module))


def _module(module: str) -> Iterator[str]:
    yield f"## `{module}`\n\n```{{eval-rst}}"
    yield f".. automodule:: {module}\n   :no-members:\n"
    for name in public_names(module):
        found = getattr(importlib.import_module(module), name)
        if undocumented := [*missing(found)]:
            raise ValueError(f"{module}.{name}: no docstring: {', '.join(undocumented)}")
        kind = "class" if inspect.isclass(found) else "function"
        if _is_error(found):
            continue  # on the page of errors
        yield f".. auto{kind}:: {module}.{name}"
        if kind == "class":
            yield "   :members:" + ("\n   :inherited-members:" if f"{module}.{name}".startswith(_WITH_BASES) else "")
        yield ""
    yield "```\n"


def public_names(module: str) -> list[str]:
    """``__all__`` of a module, or the public names that it defines."""
    found = importlib.import_module(module)
    own = [
        name
        for name, value in vars(found).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module and name[0] != "_"
    ]
    return list(getattr(found, "__all__", own))


def missing(found: Any) -> Iterator[str]:
    """What has no docstring: a public name itself, or one of the public methods and properties that it defines."""
    if not inspect.getdoc(found):
        yield found.__name__
    if inspect.isclass(found):
        for name, member in vars(found).items():
            is_code = isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
            if name[0] != "_" and is_code and not inspect.getdoc(getattr(found, name)):
                yield f"{found.__name__}.{name}"


def errors() -> str:
    """Markdown: the errors and warnings of each package, with when they are raised."""
    return "\n".join(line for package in _PACKAGES for line in _errors(package))


def _errors(package: str) -> Iterator[str]:
    yield f"## `{package}`\n\n```{{eval-rst}}"
    public = public_names(package)
    for found in raised(package):
        module = package if found.__name__ in public else found.__module__
        yield f".. autoexception:: {module}.{found.__name__}\n   :show-inheritance:\n"
    yield "```\n"


def raised(package: str) -> list[type]:
    """The errors and warnings that the modules of a package define, by name within each module."""
    names = [
        package,
        *(each.name for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")),
    ]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return [
        found
        for module in modules
        for found in vars(module).values()
        if _is_error(found) and found.__module__ == module.__name__ and found.__name__[0] != "_"
    ]


def _is_error(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, HushsumError | HushsumWarning)


def commands() -> str:
    """Markdown: the help of each command."""
    return "\n".join(line for line in _command(cli, "hushsum", None))


def _command(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(
        command, info_name=name, parent=parent, max_content_width=_HELP_WIDTH, terminal_width=_HELP_WIDTH
    )
    yield f"## `{context.command_path}`\n"
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None, "it is listed"
            yield from _command(found, each, context)
