"""Which extra of the distribution holds a package that is missing: this module imports nothing that could be."""

from typing import Final

#: By the name of an imported package, the smallest extra that installs it.
EXTRAS: Final = {
    "click": "cli",
    "rich": "cli",
    "pyarrow": "files",
    "matplotlib": "analyst",
    "dp_accounting": "analyst",
    "grpc_health": "server",
    "grpc_reflection": "server",
    "prometheus_client": "server",
    "pydantic": "server",
    "structlog": "server",
    "aiokafka": "server",
    "asyncpg": "server",
    "opentelemetry": "server",
    "fsspec": "objects",
    "starlette": "page",
    "uvicorn": "page",
    "jinja2": "page",
    "contourpy": "page",
    "altair": "interactive",
    "vl_convert": "interactive",
    "numba": "fast",
    "threadpoolctl": "fast",
    "PIL": "all",
    "sklearn": "analyst",
    "scipy": "all",
}


def install_hint(error: ModuleNotFoundError) -> str | None:
    """What to install for a package that is missing; None for one that no extra has."""
    name = (error.name or "").split(".")[0]
    if name not in EXTRAS:
        return None
    return f"this command needs the package {name}, which is not installed: pip install 'hushsum[{EXTRAS[name]}]'"
