#!/usr/bin/env bash
# Everything that needs a GPU, in one command: the tests of the CUDA kernels, their bits, and their times.
# It needs softargmax, torch for CUDA, Triton, pytest, hypothesis and mpmath in the Python of $PYTHON (python3).
#
#     tools/gpu_run.sh [FOLDER]        8 minutes; writes tests.log and gpu.json into the folder (bench/results)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3} out=${1:-bench/results}
SOFTARGMAX_TEST_CUDA=1 "$python" -m pytest -q -n 8 -p no:cacheprovider -o filterwarnings= --tb=short \
  tests/triton/test_device*.py tests/normalize/test_edges.py tests/normalize/test_numbers.py \
  tests/loss/test_edges.py tests/loss/test_options.py tests/sparse/test_edges.py \
  >"$out/tests.log" 2>&1
tests=$?
tail -n 25 "$out/tests.log"
"$python" -m bench.gpu --out "$out/gpu.json" || exit
exit $tests
