#!/bin/sh
# What the tests of the page need beside Python: Chromium (or Chrome), Node.js and npm.
#
#     sh tools/page_tools.sh find       prints the browser's path; says what is missing
#     sh tools/page_tools.sh install    for CI, as root on Debian: also installs what is missing
#
# Changes the machine by `install` only. Exit code 1: something is missing; it stands on stderr.
set -u

say() { echo "page_tools: $*" >&2; }

find_browser() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" && return
    done
    return 1
}

missing() {
    find_browser >/dev/null || echo chromium
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
}

find_all() {
    if [ -n "$(missing)" ]; then
        say "the tests of the page need these, too: $(missing | tr '\n' ' ')"
        say "on Debian and Ubuntu: sudo apt-get install $(missing | tr '\n' ' ')"
        return 1
    fi
    find_browser
}

install_missing() {
    [ -n "$(missing)" ] || return 0
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { say "can install packages as root on Debian only"; return 1; }
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        $(missing) fonts-dejavu-core >/dev/null || { say "apt-get could not install $(missing | tr '\n' ' ')"; return 1; }
}

case ${1:-find} in
    find) find_all ;;
    install) install_missing && find_all ;;
    *) say "find or install"; exit 2 ;;
esac
