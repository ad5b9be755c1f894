"""What an Arrow stream says of its size once unpacked, without unpacking it.

A message is a FlatBuffer: a table begins with the distance back to its vtable, which says where
each field lies. Of a record batch the third field lists the buffers and the fourth, where there is
one, says that each buffer is compressed and begins with its unpacked size.
"""

import struct

_DICTIONARY, _RECORDS = 2, 3


def unpacked_size(stream: bytes) -> int:
    """Bytes of all compressed buffers of an Arrow stream once unpacked; 0 if none is compressed.

    Raises:
      ValueError, struct.error, IndexError: a damaged stream.
    """
    import pyarrow as pa  # slow import: only where it is used

    total = 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.body is not None:
            total += _unpacked(message.metadata.to_pybytes(), message.body)
    return total


def _unpacked(head: bytes, body) -> int:
    root = _number("I", head, 0)
    kind = _field(head, root, 1)
    batch = _reference(head, root, 2)
    kind = 0 if kind is None else _number("B", head, kind)
    if kind == _DICTIONARY and batch is not None:
        batch = _reference(head, batch, 1)
    if kind not in (_DICTIONARY, _RECORDS) or batch is None or _field(head, batch, 3) is None:
        return 0
    buffers, total = _reference(head, batch, 2), 0
    if buffers is None:
        return 0
    for i in range(_number("I", head, buffers)):
        start, length = (_number("q", head, buffers + 4 + 16 * i + 8 * k) for k in range(2))
        if length:
            # -1 marks a buffer that is stored as it is.
            total += max(_number("q", body.slice(start, 8).to_pybytes(), 0), length)
    return total


def _number(form: str, data: bytes, place: int) -> int:
    if place < 0:
        raise ValueError("an offset points before the message")
    return struct.unpack_from(f"<{form}", data, place)[0]


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table lies; None where it has its default."""
    vtable = table - _number("i", data, table)
    if 4 + 2 * number >= _number("H", data, vtable):
        return None
    offset = _number("H", data, vtable + 4 + 2 * number)
    return table + offset if offset else None


def _reference(data: bytes, table: int, number: int) -> int | None:
    """Where a table or a vector that a field points to begins."""
    place = _field(data, table, number)
    return None if place is None else place + _number("I", data, place)
