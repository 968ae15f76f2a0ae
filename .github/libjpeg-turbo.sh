#!/bin/sh
# libjpeg-turbo as a static library, for the codec of a wheel: sh .github/libjpeg-turbo.sh PREFIX [SOURCE]
# SOURCE: its unpacked source; without one the release is fetched and its SHA-256 checked. Needs cmake, a C compiler and,
# on x86-64, nasm. Then: GLUONTUNE_JPEG=PREFIX GLUONTUNE_CODEC=linked python -m build
set -eu
version=3.2.0
sum=6f30092cef9fb839779646608f4ee14ae3cbac989c47fa05e841b0841f09878e
prefix=$1 source=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$(uname -m)" = x86_64 ] && ! command -v nasm >/dev/null; then
  for install in 'dnf install -y -q' 'yum install -y -q' 'apt-get install -y -qq'; do
    if command -v "${install%% *}" >/dev/null; then $install nasm && break; fi
  done
fi
if [ -z "$source" ]; then
  name=libjpeg-turbo-$version
  curl -fsSL --retry 3 -o "$work/$name.tar.gz" \
    "https://github.com/libjpeg-turbo/libjpeg-turbo/releases/download/$version/$name.tar.gz"
  echo "$sum  $work/$name.tar.gz" | sha256sum -c -
  tar xzf "$work/$name.tar.gz" -C "$work"
  source=$work/$name
fi
cmake -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
  -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DWITH_TOOLS=OFF -DWITH_TESTS=OFF \
  -DREQUIRE_SIMD="${REQUIRE_SIMD:-ON}" -DCMAKE_INSTALL_PREFIX="$prefix"
cmake --build "$work/build" --parallel 2
cmake --install "$work/build"
