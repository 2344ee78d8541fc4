"""Evaluates a framework's file on facts, as the program does: expressions are Starlark, of which Python's are a near enough copy.

A stand-in for tables and for a look at new rules; the program's own evaluation is tested with the tables.
"""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "frameworks"
BUILTINS = {"all": all, "any": any, "len": len, "max": max, "min": min, "str": str, "range": range, "sorted": sorted}


def load(name: str) -> dict:
    """Returns a framework's file with what it takes over from its base."""
    own = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    if "base" not in own:
        return own
    base = load(own["base"])
    gone = set(own.get("remove", []))
    merged = {**base, **own}
    for part in ["rules", "options", "environment"]:
        named = {entry["name"]: entry for entry in base.get(part, [])} | {entry["name"]: entry for entry in own.get(part, [])}
        merged[part] = [entry for entry in named.values() if entry["name"] not in gone]
    for part in ["schedules", "needs", "defaults"]:
        merged[part] = base.get(part, {}) | own.get(part, {})
    return merged


def value(expression: str, facts: dict):
    """Returns the value of an expression; raises `NameError` where it names an unknown fact."""
    return eval(expression, {"__builtins__": BUILTINS, **facts})


def broken(framework: dict, facts: dict) -> list[dict]:
    """Returns the rules that the facts break."""
    found = []
    for rule in framework["rules"]:
        try:
            if value(rule.get("when", "True"), facts) and not value(rule["expect"], facts):
                found.append(rule)
        except NameError:
            continue
    return found


def arguments(framework: dict, facts: dict) -> str:
    """Returns the options as text for a shell."""
    words = []
    for option in framework["options"]:
        if not value(option.get("when", "True"), facts):
            continue
        words.append(option["name"])
        if "value" in option:
            given = value(option["value"], facts)
            words += [str(word) for word in given] if isinstance(given, list) else [str(given)]
    return shlex.join(words)


def environment(framework: dict, facts: dict) -> dict[str, str]:
    """Returns the environment's variables."""
    entries = framework.get("environment", [])
    return {e["name"]: value(e["value"], facts) for e in entries if value(e.get("when", "True"), facts)}
