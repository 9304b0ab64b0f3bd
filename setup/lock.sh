#!/bin/sh
# Make all locks again, from pyproject.toml, requirements.in and setup/release.in. Pins stay as they are where they still fit;
# with --upgrade they move to the newest versions. A hashed requirements file names no registry, so that any mirror will do.
set -eu
cd "$(dirname "$0")/.."
uv pip compile --quiet --universal --generate-hashes --python-version 3.11 "$@" \
    --custom-compile-command "make lock" --extra spark --extra airflow --extra openlineage --extra protobuf \
    --no-emit-package playwright \
    pyproject.toml requirements.in --output-file requirements.txt
{
    echo "# The installer of requirements.txt, and nothing else: pip is slow at 180 packages. Made by \`make lock\`."
    grep '^uv==' requirements.txt | cut -d ' ' -f 1 |
        uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -
} >setup/uv.txt.new
mv setup/uv.txt.new setup/uv.txt
uv pip compile --quiet --universal --generate-hashes --python-version 3.11 "$@" \
    --custom-compile-command "make lock" setup/release.in --output-file setup/release.txt
if grep -nE 'https?://|--(extra-)?index-url|--find-links' requirements.txt setup/uv.txt setup/release.txt; then
    echo "make lock: the lines above name a registry; nothing of that kind may be committed" >&2
    exit 1
fi
