"""Why a mutant that no test notices changes nothing that anybody could notice."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: {what the whole name of a mutant looks like: why}
REASONS: Mapping[str, str] = {
    r".*: compare .*(clock_timestamp|committed_at|interval|since_ms|until_ms|set_aside_(since|until)).*": (
        "two times that are equal to the microsecond: either side of them is right"
    ),
}


def reason(name: str) -> str | None:
    """Why the mutant called *name* may live; ``None``: it may not."""
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, name)), None)
