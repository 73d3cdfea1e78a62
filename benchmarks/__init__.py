"""Speed, measured side by side in one run: ``python -m benchmarks``, or ``make bench``."""

import os

# Here, before anything loads NumPy: a second BLAS thread would make every ratio meaningless.
for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_variable] = "1"
