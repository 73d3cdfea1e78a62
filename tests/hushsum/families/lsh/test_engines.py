"""The two engines: each computes every definition of codes, and the environment decides which of them runs."""

import inspect
import pkgutil
from importlib import import_module

import pytest

from hushsum.families.lsh import codes, numpy_engine
from hushsum.families.lsh.compiled import engine as compiled_engine
from hushsum.families.lsh.engines import engine


def definitions() -> set[type]:
    """Every class in families/lsh/codes that says where its codes end."""
    modules = [import_module(f"{codes.__name__}.{found.name}") for found in pkgutil.iter_modules(codes.__path__)]
    own = {each for module in modules for _, each in inspect.getmembers(module, inspect.isclass)}
    return {each for each in own if hasattr(each, "ends") and not getattr(each, "_is_protocol", False)}


@pytest.mark.parametrize("loops", (numpy_engine, compiled_engine), ids=("plain", "fast"))
def test_the_engine_has_a_coder_of_every_definition(loops: object) -> None:
    assert set(vars(loops)["_CODERS"]) == definitions()
    assert len(definitions()) == 7


def test_the_environment_decides_which_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernels, expected in (("plain", numpy_engine), ("fast", compiled_engine)):
        monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
        assert engine() is expected
