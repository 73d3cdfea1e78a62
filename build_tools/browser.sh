#!/bin/sh
# Installs Chromium for the tests of the web page, once: with Debian's packages, as root. Where that is not possible it
# says so in one line, and the tests that need a browser are skipped.
set -eu

if command -v chromium >/dev/null 2>&1; then exit 0; fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "browser: chromium is not installed, and only root can install it here: tests in a browser are skipped" >&2
    exit 0
fi
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium; } \
    >/dev/null 2>&1; then
    echo "browser: chromium cannot be installed by apt-get: tests in a browser are skipped" >&2
fi
