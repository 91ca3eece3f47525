#!/usr/bin/env bash
# Makes dgpp-VERSION.tar.zst: everything that `dgpp install` needs, for machines without a network.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

OUT=$ROOT/dist
PLATFORMS=(x86_64 aarch64)
PYTHONS=(3.11 3.12 3.13)

usage() {
    cat <<EOT
usage: scripts/release.sh [--platform x86_64|aarch64]... [--python 3.12]... [--extra cuda]... [--out DIR]
                          [--with PYTHON]

Builds dgpp's wheel, stamped with this commit, downloads the wheels of what it needs for every
platform and Python named (default: both platforms; ${PYTHONS[*]}), and writes
OUT/dgpp-VERSION.tar.zst and its .sha256. OUT is dist/ unless told otherwise. PYTHON, which has dgpp's
requirements, does it all in place of .venv's.
EOT
}

platforms=() pythons=() extras=() with=
while [ $# -gt 0 ]; do
    case $1 in
        --platform) platforms+=("$2"); shift 2 ;;
        --python) pythons+=("$2"); shift 2 ;;
        --extra) extras+=("$2"); shift 2 ;;
        --out) OUT=$2; shift 2 ;;
        --with) with=$2; shift 2 ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 1 ;;
    esac
done
[ ${#platforms[@]} -gt 0 ] || platforms=("${PLATFORMS[@]}")
[ ${#pythons[@]} -gt 0 ] || pythons=("${PYTHONS[@]}")

if [ -n "$with" ]; then PY=$with; else make_venv; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$(cd "$ROOT" && PYTHONPATH=$ROOT "$PY" -P -m dgpp --version)
folder=$work/dgpp-$version
mkdir -p "$folder/wheels" "$OUT"

note "building the wheel of $version"
# From the files that git knows, stamped: an installed tree has no history to ask.
mkdir "$work/tree"
(cd "$ROOT" && git ls-files -z | xargs -0 cp --parents -t "$work/tree")
sed -i "s/^version = .*/version = \"$version\"/" "$work/tree/pyproject.toml"
"$PY" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$folder/wheels" "$work/tree"
wheel=$(echo "$folder"/wheels/dgpp-*.whl)
wanted="$wheel"
joined=$(IFS=,; echo "${extras[*]-}")
[ -z "$joined" ] || wanted="$wheel[$joined]"
[ -z "$joined" ] || printf '%s\n' "$joined" >"$folder/EXTRAS"

for platform in "${platforms[@]}"; do
    tags=()
    for libc in 39 38 35 34 31 28 27 26 24 17 12 5; do tags+=(--platform "manylinux_2_${libc}_$platform"); done
    tags+=(--platform "manylinux2014_$platform" --platform "manylinux1_$platform")
    for python in "${pythons[@]}"; do
        note "wheels for $platform, Python $python"
        "$PY" -m pip download -qq --disable-pip-version-check --only-binary=:all: "${tags[@]}" \
            --python-version "$python" --implementation cp --dest "$folder/wheels" "$wanted" ||
            die "no wheels for $platform and Python $python"
    done
done

for part in deploy docs scripts README.md CHANGELOG.md LICENSE SECURITY.md; do
    [ -e "$work/tree/$part" ] && cp -r "$work/tree/$part" "$folder/"
done
mkdir -p "$folder/man/man1"
"$PY" "$ROOT/scripts/make_man_page.py" --version "$version" >"$folder/man/man1/dgpp.1"
(cd "$folder" && find . -type f ! -name MANIFEST.sha256 -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum) \
    >"$work/manifest"
mv "$work/manifest" "$folder/MANIFEST.sha256"

archive=$OUT/dgpp-$version.tar.zst
"$PY" - "$folder" "$archive" <<'PYTHON'
import sys
import tarfile
from pathlib import Path

import zstandard

folder, archive = Path(sys.argv[1]), Path(sys.argv[2])
files = sorted(file for file in folder.rglob("*") if file.is_file())
files.sort(key=lambda file: file.name != "MANIFEST.sha256")
with archive.open("wb") as out, zstandard.ZstdCompressor(
    level=3, threads=-1, write_checksum=True
).stream_writer(out) as packed:
    with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as members:
        for file in files:
            info = members.gettarinfo(str(file), str(file.relative_to(folder.parent)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            with file.open("rb") as data:
                members.addfile(info, data)
PYTHON
(cd "$OUT" && sha256sum "$(basename "$archive")" >"$(basename "$archive").sha256")
note "$archive"
