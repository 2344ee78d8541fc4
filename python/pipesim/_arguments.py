"""Python's values as words of the command line, so that no value means something else there."""

from __future__ import annotations

import json
import math
import numbers
import operator
import os
import re
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, Iterable, Mapping, NoReturn

from ._errors import UsageError

#: Options without a value, with their aliases: True or False. A check compares them with the program's help.
SWITCHES = frozenset(
    "all_steps ascii balance baseline collapse defer_reduce_grad_wait delay_wgrad delay_wgrad_compute moe_overlap no_cut no_memory no_notes no_waits "
    "overlap_cpu_optimizer_d2h_h2d overlap_moe_expert_parallel_comm overlap_optimizer_offload repeat_batch sequence_parallel tables".split()
)
#: Options that the package sets itself.
_OWN = frozenset("format help json only quiet version".split())
#: Options of which predict takes several numbers, and the fields of its results that tell which one a result is for.
SEVERAL = {"tp": "tp", "stages": "devices", "dp": "dp", "micro_batch_size": "micro_batch_size", "micro": "microbatches"}
#: Options that are given once per value of a list.
_REPEATED = frozenset("delivery fail_if fix job_env job_file label link output schedules set slow slow_link straggler".split())
#: Options whose list is one text, with what separates its values.
_JOINED = {"columns": ",", "contention": ",", "gpus": ",", "layers": ",", "link_contention": ",", "packed": ",", "recompute": ",", "slice_lengths": ":", "unshard_lookahead": ","}
#: Options that take pairs of a name and a value.
_PAIRS = frozenset("fix job_env label set slow slow_link straggler".split())
#: Most numbers of a list, as on the command line.
_MOST = 1000
#: Digits of a fraction: more than the program keeps.
_DIGITS = 40


def refuse(name: str, expected: str, found: Any, remedy: str = "") -> NoReturn:
    """Raises the error for an argument."""
    shown = repr(found)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise UsageError(f"{name}: expected {expected}, found {shown}{'; ' + remedy if remedy else ''}")


def plain(value: Any) -> Any:
    """Returns numbers and arrays of numpy, torch and pandas as Python's."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, os.PathLike, Mapping))


def number(name: str, value: Any) -> str | None:
    """Returns a number as text in full precision; None for what is no number."""
    if isinstance(value, bool) or not isinstance(value, (numbers.Number, Decimal)):
        return None
    if isinstance(value, numbers.Integral):
        return str(int(operator.index(value)))
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        whole, rest = divmod(abs(value.numerator), value.denominator)
        scale = 10 ** (_DIGITS + len(str(value.denominator)))
        return f"{'-' * (value < 0)}{whole}.{rest * scale // value.denominator:0{len(str(scale)) - 1}d}".rstrip("0")
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else refuse(name, "a finite number", value)
    if not isinstance(value, numbers.Real):
        return refuse(name, "a real number", value)
    return repr(float(value)) if math.isfinite(value) else refuse(name, "a finite number", value)


def path(name: str, value: Any) -> str:
    """Returns a path as text; one that a path object names has a slash, so that it is not taken for a name."""
    if not isinstance(value, (str, os.PathLike)):
        refuse(name, "a path", value)
    text = os.fspath(value)
    text = os.fsdecode(text) if isinstance(text, bytes) else str.__str__(text)
    return text if isinstance(value, str) or "/" in text else "./" + text


def word(name: str, value: Any) -> str:
    """Returns a number, a text or a path as one word."""
    value = plain(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike):
        return path(name, value)
    text = number(name, value)
    return refuse(name, "a number or a text", value) if text is None else text


def words(name: str, values: Iterable[Any], separator: str) -> list[str]:
    """Returns the values of a list, none of which may contain the separator."""
    found = [word(name, value) for value in islice(values, _MOST + 1)]
    if not found:
        refuse(name, "a value or more", found)
    if len(found) > _MOST:
        raise UsageError(f"{name}: expected at most {_MOST} values, found more; give fewer")
    for text in found:
        if not text.strip():
            refuse(name, "a value", text)
        if separator and separator in text:
            refuse(name, f"values without {separator!r}", text, "give each value by itself")
    return found


def whole(name: str, value: Any) -> int:
    """Returns a whole number."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        refuse(name, "a whole number", value)
    return int(operator.index(value))


def counts(name: str, value: Any, several: bool) -> tuple[str, bool]:
    """Returns one or several numbers as text, and whether they were given as several: as a list, or as in ``"4,8"`` or ``"4..64*2"``."""
    value = plain(value)
    if isinstance(value, str):
        text, found = str.__str__(value), "," in value or ".." in value
    elif is_list(value):
        listed = [str(whole(name, one)) for one in islice(value, _MOST + 1)]
        if not listed or len(listed) > _MOST:
            refuse(name, f"from 1 to {_MOST} numbers", value)
        text, found = ",".join(listed), True
    else:
        text, found = str(whole(name, value)), False
    if found and not several:
        refuse(name, "one number", value, "only predict and predict_model take several")
    return text, found


def costs(value: Any, devices: Any) -> str:
    """Returns costs as text: in a mapping a list has a cost per stage."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike):
        text = path("costs", value)
        is_file = text.lower().endswith((".csv", ".toml")) and "=" not in text
        return text if is_file else refuse("costs", "the path of a .csv or .toml file, without '='", text, "rename it")
    if not isinstance(value, Mapping) or not value:
        refuse("costs", "a mapping such as {'F': 1, 'B': 2}, a text such as 'F=1,B=2' or a path", value)
    pairs, lengths = [], {}
    for key, cost in value.items():
        name, cost = f"costs[{key!r}]", plain(cost)
        if not isinstance(key, str) or not re.fullmatch("[A-Za-z_]+", key):
            refuse("costs", "names such as F, I, W, B and comm", key)
        if is_list(cost):
            texts = words(name, cost, ":")
            lengths[key] = len(texts)
            units = {re.sub("[^a-zµμ]", "", re.sub("[0-9.]+[eE][-+]?[0-9]+", "", text)) for text in texts}
            if len(units) > 1:
                refuse(name, "one unit for all stages", texts, "convert them")
            text = ":".join(texts)
        else:
            text = word(name, cost)
        if "," in text or "=" in text:
            refuse(name, "one cost without ',' and '='", text, "give each cost by its own name")
        pairs.append(f"{key}={text}")
    if len(set(lengths.values())) > 1:
        refuse("costs", "lists with one cost per stage, all of one length", lengths, "give a number for a cost that is the same everywhere")
    if 1 in lengths.values() and str(plain(devices)) != "1":
        refuse("costs", f"a cost for each stage of {devices} devices", "a list of one", "give the number itself if it holds for all stages")
    return ",".join(pairs)


def _pairs(name: str, value: Mapping[Any, Any]) -> list[str]:
    """Returns ``key=value`` for each pair, several for a list."""
    found = []
    for key, listed in value.items():
        listed = plain(listed)
        left = word(name, key)
        if not left.strip() or "=" in left or "," in left:
            refuse(name, "names without '=' and ','", key)
        texts = ["/".join(words(name, listed, "/"))] if is_list(listed) and left == "layers" else words(name, listed if is_list(listed) else [listed], "")
        found += [f"{left}={text}" for text in texts]
    return found or refuse(name, "a mapping of one value or more", value)


def option(key: str, value: Any) -> list[str]:
    """Returns the words of a keyword: True is a switch, a list repeats or is joined, a mapping is pairs, None leaves the option out."""
    if not re.fullmatch("[a-z][a-z0-9_]*", key):
        refuse("options", "keywords such as memory_cap", key)
    key = key.rstrip("_")
    if key in _OWN:
        raise UsageError(f"{key}: expected options of the simulation, found one that the package sets itself; leave it out")
    flag, value = "--" + key.replace("_", "-"), plain(value)
    if value is None:
        return []
    if key in SWITCHES or isinstance(value, bool):
        if key == "cuda_graphs":
            return [f"{flag}={'on' if value else 'off'}"]
        if not isinstance(value, bool):
            refuse(key, "True or False", value)
        if key not in SWITCHES and key != "exact":
            refuse(key, "a value", value, "leave it out for the default")
        return [flag] if value else []
    if isinstance(value, Mapping):
        if key not in _PAIRS:
            refuse(key, "a number or a text", value)
        return [f"{flag}={text}" for text in _pairs(key, value)]
    if not is_list(value):
        return [f"{flag}={word(key, value)}"]
    if key == "layout":
        try:
            return [f"{flag}={json.dumps(list(value))}"]
        except TypeError:
            refuse(key, "a list of stages, each a list of names", value)
    if key == "window":
        ends = ["" if one is None else word(key, one) for one in value]
        return [f"{flag}={'..'.join(ends)}"] if len(ends) == 2 else refuse(key, "its two ends", value)
    if key in _JOINED:
        return [f"{flag}={_JOINED[key].join(words(key, value, _JOINED[key]))}"]
    if key in _REPEATED:
        return [f"{flag}={text}" for text in words(key, value, "")]
    return refuse(key, "one value", value)
