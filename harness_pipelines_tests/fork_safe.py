"""What the process that workers are forked from imports first.

A fork copies locks but not the threads that hold them. The ADBC driver imports polars where it is installed, as it is
for the interop tests, and polars starts threads on import: now and then a forked worker hung before its first step.
"""

import sys

sys.modules["polars"] = None  # type: ignore[assignment]  # Python's way to say: not to be imported
