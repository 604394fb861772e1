"""What the process that workers are forked from imports first: it must have one thread.

A fork copies locks but not the threads that hold them: now and then a forked worker hung before its first step. What
the modules that workers need would start on import is kept from starting.
"""

import os
import sys

sys.modules["polars"] = None  # type: ignore[assignment]  # the ADBC driver imports it where it is installed
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # Arrow's
