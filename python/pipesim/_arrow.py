"""Tables for the Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), with ctypes alone.

:func:`stream` returns the PyCapsule that ``__arrow_c_stream__`` promises, from which pyarrow, polars and pandas take columns.
"""

from __future__ import annotations

import array
import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any, Mapping, Sequence

_NULLABLE = 2


class _Schema(Structure):
    pass


class _Array(Structure):
    pass


class _Stream(Structure):
    pass


_RELEASE_SCHEMA, _RELEASE_ARRAY, _RELEASE_STREAM = (CFUNCTYPE(None, POINTER(kind)) for kind in (_Schema, _Array, _Stream))
_GET_SCHEMA, _GET_NEXT = CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Schema)), CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Array))
_GET_ERROR = CFUNCTYPE(c_void_p, POINTER(_Stream))
_Schema._fields_ = [
    ("format", c_char_p), ("name", c_char_p), ("metadata", c_char_p), ("flags", c_int64), ("n_children", c_int64),
    ("children", POINTER(POINTER(_Schema))), ("dictionary", c_void_p), ("release", _RELEASE_SCHEMA), ("private_data", c_void_p),
]  # fmt: skip
_Array._fields_ = [
    ("length", c_int64), ("null_count", c_int64), ("offset", c_int64), ("n_buffers", c_int64), ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)), ("children", POINTER(POINTER(_Array))), ("dictionary", c_void_p), ("release", _RELEASE_ARRAY),
    ("private_data", c_void_p),
]  # fmt: skip
_Stream._fields_ = [
    ("get_schema", _GET_SCHEMA), ("get_next", _GET_NEXT), ("get_last_error", _GET_ERROR), ("release", _RELEASE_STREAM), ("private_data", c_void_p),
]  # fmt: skip

# What the structures of others point to, until they release it; by the number in private_data.
_kept: dict[int, Any] = {}
_count = 0


def _keep(structure: Any, *objects: Any) -> None:
    global _count
    _count += 1
    structure.private_data = _count
    _kept[_count] = objects


def _released(pointer: Any, nothing: Any) -> None:
    structure = pointer.contents
    for k in range(getattr(structure, "n_children", 0)):
        child = structure.children[k]
        if child.contents.release:
            child.contents.release(child)
    _kept.pop(structure.private_data, None)
    structure.release = nothing


@_RELEASE_SCHEMA
def _release_schema(pointer: Any) -> None:
    _released(pointer, _RELEASE_SCHEMA())


@_RELEASE_ARRAY
def _release_array(pointer: Any) -> None:
    _released(pointer, _RELEASE_ARRAY())


@_RELEASE_STREAM
def _release_stream(pointer: Any) -> None:
    _released(pointer, _RELEASE_STREAM())


def _bits(values: Sequence[Any]) -> bytes:
    """Returns a bit per value: whether there is one."""
    number = sum(1 << k for k, value in enumerate(values) if value is not None)
    return number.to_bytes((len(values) + 7) // 8, "little")


def _column(format: str, values: Sequence[Any]) -> tuple[int, list[bytes | None]]:
    """Returns the number of nulls and the buffers of a column: validity, then values, for text offsets and bytes."""
    nulls = sum(value is None for value in values)
    validity = _bits(values) if nulls else None
    if format == "u":
        texts = [(value or "").encode() for value in values]
        offsets = array.array("i", [0])
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        return nulls, [validity, offsets.tobytes(), b"".join(texts)]
    return nulls, [validity, array.array("q" if format == "l" else "d", [value or 0 for value in values]).tobytes()]


def _fill_array(into: _Array, length: int, nulls: int, buffers: Sequence[bytes | None], children: Sequence[_Array]) -> None:
    held = [buffer if buffer is None else ctypes.create_string_buffer(buffer, max(1, len(buffer))) for buffer in buffers]
    places = (c_void_p * len(held))(*[None if buffer is None else ctypes.addressof(buffer) for buffer in held])
    below = (POINTER(_Array) * len(children))(*[ctypes.pointer(child) for child in children])
    into.length, into.null_count, into.offset, into.n_buffers, into.n_children = length, nulls, 0, len(held), len(children)
    into.buffers, into.children, into.dictionary, into.release = places, below, None, _release_array
    _keep(into, held, places, below, children)


def _fill_schema(into: _Schema, format: str, name: str, children: Sequence[_Schema]) -> None:
    texts = format.encode(), name.encode()
    below = (POINTER(_Schema) * len(children))(*[ctypes.pointer(child) for child in children])
    into.format, into.name, into.metadata, into.flags, into.n_children = *texts, None, 0 if children else _NULLABLE, len(children)
    into.children, into.dictionary, into.release = below, None, _release_schema
    _keep(into, texts, below, children)


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [c_void_p, c_char_p]
_NAME = b"arrow_array_stream"


@CFUNCTYPE(None, c_void_p)
def _free(capsule: int) -> None:
    address = _pointer(capsule, _NAME)
    stream = ctypes.cast(address, POINTER(_Stream))
    if stream.contents.release:
        stream.contents.release(stream)
    _kept.pop(-address, None)


def stream(formats: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Any:
    """Returns a capsule with one batch of `rows`; `formats` has Arrow's letter of each column: u text, l int64, g float64."""
    state = {"left": 1}

    @_GET_SCHEMA
    def get_schema(_: Any, into: Any) -> int:
        children = [_Schema() for _ in formats]
        for child, (name, format) in zip(children, formats.items()):
            _fill_schema(child, format, name, [])
        _fill_schema(into.contents, "+s", "", children)
        return 0

    @_GET_NEXT
    def get_next(_: Any, into: Any) -> int:
        if not state["left"]:
            into.contents.release = _RELEASE_ARRAY()
            return 0
        state["left"] = 0
        children = [_Array() for _ in formats]
        for child, (name, format) in zip(children, formats.items()):
            nulls, buffers = _column(format, [row[name] for row in rows])
            _fill_array(child, len(rows), nulls, buffers, [])
        _fill_array(into.contents, len(rows), 0, [None], children)
        return 0

    @_GET_ERROR
    def get_error(_: Any) -> int | None:
        return None

    made = _Stream(get_schema, get_next, get_error, _release_stream, None)
    _keep(made, get_schema, get_next, get_error)
    address = ctypes.addressof(made)
    _kept[-address] = made
    return _capsule(address, _NAME, ctypes.cast(_free, c_void_p))
