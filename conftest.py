"""Before JAX starts: the suite's cost is XLA compiling tiny programs, and its older emitters do so
in half the time, with results as exact. Only where the flag is known: XLA aborts on others.
"""

import importlib.metadata
import os

FLAG = "--xla_cpu_use_fusion_emitters=false"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()
