"""Modules of packages that are not installed: any name in them is an empty class.

The checks need the parsing and validation of a framework, not its kernels. `install` makes `import transformer_engine.pytorch`
and the like succeed, for the packages named only; everything else is the real code.
"""

import abc
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types


class _Class(abc.ABCMeta):
    """Class of stub classes: their attributes are stubs, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return make_class(name)


def make_class(name):
    """Returns an empty class that takes any arguments, and works as a decorator."""

    def init(self, *args, **kwargs):
        pass

    def call(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else None

    return _Class(name, (), {"__init__": init, "__call__": call})


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = make_class(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == own or name.startswith(own + ".") for own in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []
        module.__version__ = self.names.get(module.__name__, "")


def install(versions):
    """Makes packages importable that are absent. `versions`: package, and the version that it claims."""
    missing = {}
    for name, version in versions.items():
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            missing[name] = version
    sys.meta_path.append(_Finder(missing))
    usual = importlib.metadata.version

    def version_of(name):
        return missing[name.replace("-", "_")] if name.replace("-", "_") in missing else usual(name)

    importlib.metadata.version = version_of
    return sorted(missing)
