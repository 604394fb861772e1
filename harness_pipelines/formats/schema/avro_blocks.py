"""Check the sizes of blocks of arrays and maps in Avro bytes; fastavro reads them and does not look at them.

A block with a count below 0 states its size in bytes. Where the elements take more or fewer, the bytes are no value of
the schema. All records of a batch are walked field by field in step, which costs a few hundredths of decoding them;
few that are left over, such as those with long lists, are walked one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.formats.schema.avro_numbers import BYTES, Numbers, Wrong

_FEW = 24  #: records for which numpy costs more than a loop
_BEYOND = bytes(16)  #: that a number at the end of the last record may be looked for in
_NUMBER_BYTES = 10

Places = NDArray[np.int64]


class Blocks:
    """Looks at the blocks in records of one schema that fastavro has read."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def fit(self, payloads: Sequence[bytes]) -> bool:
        """Whether all blocks of all *payloads* have the sizes that they state."""
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        walk = _Walk(self._numbers, b"".join([*payloads, _BEYOND]))
        try:
            walk.after(self._numbers.schema, sizes.cumsum() - sizes)
        except (Wrong, IndexError):
            return False
        return True


class _Walk:
    """Walks over all values that begin at some places of *whole*, in step."""

    def __init__(self, numbers: Numbers, whole: bytes) -> None:
        self._numbers, self._whole = numbers, whole
        self._bytes = np.frombuffer(whole, np.uint8)

    def after(self, schema: Any, at: Places) -> Places:
        """Where the values that begin at *at* end. Raises: Wrong, IndexError."""
        if not len(at):
            return at
        if len(at) <= _FEW:
            return np.array([self._numbers.after(schema, self._whole, int(one)) for one in at], np.int64)
        if isinstance(schema, str) and schema not in self._numbers.named:
            return self._after_primitive(schema, at)
        if isinstance(schema, str):
            schema = self._numbers.named[schema]
        if isinstance(schema, list):
            return self._after_union(schema, at)
        match schema["type"]:
            case "record":
                for field in schema["fields"]:
                    at = self.after(field["type"], at)
                return at
            case "array":
                return self._after_blocks([schema["items"]], at)
            case "map":
                return self._after_blocks(["string", schema["values"]], at)
            case "fixed":
                return at + int(schema["size"])
        return self.after(schema["type"], at)

    def _after_primitive(self, name: str, at: Places) -> Places:
        if name in BYTES:
            return at + BYTES[name]
        number, at = self._number(at)
        return at + number if name in ("bytes", "string") else at

    def _after_union(self, branches: list[Any], at: Places) -> Places:
        chosen, at = self._number(at)
        for which, branch in enumerate(branches):
            if branch != "null" and len(here := np.flatnonzero(chosen == which)):
                at[here] = self.after(branch, at[here])
        return at

    def _after_blocks(self, parts: list[Any], at: Places) -> Places:
        at, open_ = at.copy(), np.arange(len(at))
        while len(open_):
            count, begin = self._number(at[open_])
            sized = np.flatnonzero(count < 0)
            size, begin[sized] = self._number(begin[sized])
            end, left = begin.copy(), np.abs(count)
            while len(more := np.flatnonzero(left > 0)):
                for part in parts:
                    end[more] = self.after(part, end[more])
                left[more] -= 1
                if len(more) <= _FEW:  # their others too, without a look at all records for each
                    for one in more.tolist():
                        end[one] = self._numbers.after_elements(parts, int(left[one]), self._whole, int(end[one]))
                    left[more] = 0
            if (end[sized] - begin[sized] != size).any():
                raise Wrong("a block does not have the size that it states")
            at[open_] = end
            open_ = open_[count != 0]
        return at

    def _number(self, at: Places) -> tuple[Places, Places]:
        """The numbers at *at*, and where they end. Raises: IndexError."""
        found = self._bytes[at].astype(np.uint64)
        longer = np.flatnonzero(found > 0x7F)
        found &= np.uint64(0x7F)
        at = at + 1
        for place in range(1, _NUMBER_BYTES):
            if not len(longer):
                break
            byte = self._bytes[at[longer]].astype(np.uint64)
            found[longer] |= (byte & np.uint64(0x7F)) << np.uint64(7 * place)
            at[longer] += 1
            longer = longer[byte > 0x7F]
        return (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64), at
