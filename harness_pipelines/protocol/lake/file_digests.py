"""The length of a file of the lake at writing, and a digest of its end."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from harness_pipelines.errors import HarnessError

DIGEST_BYTES = 16


class FileDamaged(HarnessError):
    """A file of the lake exists but its content changed."""

    way_on = "copy it back, or `harness reconcile TABLE --repair-file FILE --dry-run`, then `--yes`"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} is damaged: {why}. `harness fsck` lists all damaged files; `harness reconcile TABLE --repair-file "
            f"{path}` shows whether it can be recreated"
        )
        self.path, self.why = path, why


@dataclass(frozen=True, slots=True)
class Digest:
    """The state of a file when it was written."""

    length: int
    tail: int  #: how many bytes at its end the digest is of
    value: bytes

    def check(self, path: str, *, size: int, tail: bytes) -> None:
        """Compare it with what is there. Raises: FileDamaged."""
        if size != self.length:
            raise FileDamaged(path, f"{size:,} bytes are there, {self.length:,} were written")
        if digest_of(tail) != self.value:
            part = "it is not" if self.tail == self.length else f"its last {self.tail:,} bytes are not"
            raise FileDamaged(path, f"{part} what was written")


def digest_of(content: bytes) -> bytes:
    """The digest that notes are made of."""
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
