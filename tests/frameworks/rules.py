"""A framework's file, evaluated: which rules a layout breaks, and its options as text.

The product does the same with Starlark. Python's `eval` is near enough for the checks in this folder, which need no build of it.
"""

import json
import re
import shlex
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "frameworks"
NAMES = {"all": all, "any": any, "bool": bool, "dict": dict, "enumerate": enumerate, "int": int, "len": len, "list": list, "max": max,
         "min": min, "range": range, "reversed": reversed, "sorted": sorted, "str": str, "zip": zip}


def load(name):
    """Returns a file of `frameworks/` with what its base adds."""
    own = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    if "base" not in own:
        return own
    base = load(own["base"])
    gone = set(own.get("remove", []))
    for part in ["rules", "options", "environment", "notes"]:
        mine = {entry.get("name", entry.get("text")): entry for entry in own.get(part, [])}
        kept = [mine.pop(entry.get("name", entry.get("text")), entry) for entry in base.get(part, [])]
        own[part] = [entry for entry in kept if entry.get("name") not in gone] + list(mine.values())
    for part in ["schedules", "needs", "defaults"]:
        own[part] = {**base.get(part, {}), **own.get(part, {})}
    return {**base, **own}


def value(text, facts):
    """Evaluates an expression; None if it names a fact that is unknown."""
    try:
        return eval(text, {"__builtins__": {}, **NAMES, **facts})
    except NameError:
        return None


def filled(text, facts):
    """Fills {expression} in a text."""
    return re.sub(r"\{([^}]*)\}", lambda found: str(value(found[1], facts)), text)


def broken(framework, facts, kinds=("refused",)):
    """Lists the rules that a layout breaks, with the framework's error."""
    found = []
    if "split" in framework:
        facts = {**facts, "split": value(framework["split"], facts)}
    for rule in framework.get("rules", []):
        if rule["kind"] not in kinds or value(rule.get("when", "True"), facts) is not True:
            continue
        if value(rule["expect"], facts) is False:
            found.append((rule["name"], filled(rule["error"], facts)))
    return found


def entries(framework, facts):
    """Lists name and value of the options that apply; None: the name alone."""
    found = []
    for option in framework["options"]:
        if value(option.get("when", "True"), facts) is not True:
            continue
        found.append((option["name"], value(option["value"], facts) if "value" in option else None))
    return found


def word(own):
    """Returns a value as one word of a command line, without quotes."""
    if isinstance(own, str):
        return own
    if isinstance(own, list):
        return "[" + ",".join(map(word, own)) + "]"
    return json.dumps(own)


def overrides(framework, facts):
    """Writes options as words: name=value."""
    return " ".join(f"{name}={shlex.quote(word(True if own is None else own))}" for name, own in entries(framework, facts))


def arguments(framework, facts):
    """Writes options as words: --name value."""
    found = []
    for name, own in entries(framework, facts):
        more = own if isinstance(own, list) else [] if own is None else [own]
        found.append(" ".join([name] + [shlex.quote(word(one)) for one in more]))
    return " ".join(found)


def nested(framework, facts):
    """Returns options as an object, nested by the dots in their names."""
    root = {}
    for name, own in entries(framework, facts):
        *path, last = name.split(".")
        at = root
        for part in path:
            at = at.setdefault(part, {})
        at[last] = True if own is None else own
    return root
