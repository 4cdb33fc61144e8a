#!/usr/bin/env bash
# An unpatched SGLang release in a virtual environment of its own, to serve on a CPU.
# usage: tests/sglang/install.sh RELEASE FOLDER    (Python 3.11; about 2 minutes and 3 GB)
#
# The wheel is taken as published, without its CUDA dependencies. What has no CPU build and is
# never called for a Llama on torch_native attention is replaced by import stubs (stubs.py).
set -euo pipefail
release=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3.11}

# What each release was built against; found by trying.
openai=2.6.1 transformers=5.12.1 xgrammar=0.2.1 tvm=0.1.11 llguidance='llguidance>=1.7.6,<2'
case $release in
  0.5.12) transformers=5.6.0 xgrammar=0.2.0 tvm=0.1.9 llguidance='llguidance>=0.7.11,<0.8' ;;
  0.5.22) transformers=5.19.0 xgrammar=0.2.7 ;;
  0.5.23) transformers=5.19.0 xgrammar=0.2.7 openai=2.8.0 ;;
esac

rm -rf "$folder"
"$python" -m venv "$folder"
pip() { "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" 2>"$folder/pip.log" ||
  { cat "$folder/pip.log" >&2; return 1; }; }
echo "sglang $release: torch"
pip torch==2.13.0
echo "sglang $release: the release and what it imports"
pip --no-deps "sglang==$release" "xgrammar==$xgrammar" "$llguidance" \
  compressed-tensors torch_memory_saver triton==3.9.0
pip "transformers==$transformers" "openai==$openai" "apache-tvm-ffi==$tvm" \
  aiohttp anthropic cffi dill distro einops fastapi gguf interegular ipython jsonschema loguru \
  mistral-common msgspec numba==0.65.1 numpy==2.3.5 openai-harmony==0.0.4 orjson packaging \
  partial-json-parser pillow prometheus-client psutil pybase64 pydantic pydantic-extra-types \
  python-multipart pyzmq regex requests scipy sentencepiece==0.2.1 setproctitle soundfile==0.13.1 \
  tiktoken tokenizers tqdm uvicorn uvloop watchfiles xxhash zstandard
"$folder/bin/python" "$here/stubs.py"
touch "$folder/.installed"
echo "sglang $release: installed"
