#!/usr/bin/env bash
# SpecForge and speculators in a virtual environment of their own, to train on a CPU.
# usage: tests/trainers/install.sh FOLDER    (Python 3.11; about 2 minutes and 1.6 GB)
#
# Both are taken as published, without what needs a GPU or a server: flash attention, SGLang, vLLM.
# hsstore itself is not installed; the tests put it on the path, beside what it imports.
set -euo pipefail
folder=$1
python=${PYTHON:-python3.11}

rm -rf "$folder"
"$python" -m venv "$folder"
pip() { "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" 2>"$folder/pip.log" ||
  { cat "$folder/pip.log" >&2; return 1; }; }
echo "trainers: torch, and what both trainers import"
pip torch==2.13.0 transformers==5.8.1 'datasets>=4,<=5.1' accelerate safetensors numpy \
  openai openai-harmony loguru typer rich click httpx aiohttp pydantic-settings psutil pyyaml \
  requests protobuf \
  google-crc32c numcodecs orjson tqdm typing-extensions xxhash
echo "trainers: the trainers"
pip --no-deps specforge==0.2.0 speculators==0.9.0 hs-connectors==0.9.0 yunchang
touch "$folder/.installed"
echo "trainers: installed"
