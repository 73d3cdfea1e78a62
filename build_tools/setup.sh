#!/bin/sh
# Makes an environment (.venv) out of requirements.lock and puts this project into it, once.
#   usage: build_tools/setup.sh [PYTHON [FOLDER]]
# A stamp, written last, names what the environment was made from; while that is unchanged nothing is done and nothing
# asks the network. A set-up that was interrupted goes on where it stopped. Another lock or another Python starts afresh,
# so that the environment never holds what the lock does not name.
set -eu
cd "$(dirname "$0")/.."

venv=${2:-.venv}
stamp=$venv/.ready
origin=$venv/.made-from
log=$venv/setup.log
wanted=${1:-}

# A user's own pip settings may point elsewhere (--user, --target); here only the environment is meant.
unset PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIRE_VIRTUALENV
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONUNBUFFERED=1

fail() {
    printf 'setup: %s\n' "$1" >&2
    exit 1
}

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }
identity() { "$1" -c 'import sys; print(sys.version.split()[0], sys.base_prefix)' 2>/dev/null || true; }
is_supported() { case $(version "$1") in 3.11 | 3.12 | 3.13 | 3.14) true ;; *) false ;; esac }

choose_python() {
    if [ -n "$wanted" ]; then
        found=$(version "$wanted")
        [ -n "$found" ] || fail "PYTHON=$wanted does not run; name a Python 3.11, 3.12, 3.13 or 3.14, such as PYTHON=/usr/bin/python3.12"
        is_supported "$wanted" || fail "PYTHON=$wanted is Python $found; name a Python 3.11, 3.12, 3.13 or 3.14"
        python=$wanted
        return
    fi
    for python in "$venv/bin/python" python3 python3.14 python3.13 python3.12 python3.11; do
        if is_supported "$python"; then return; fi
    done
    found=$(version python3)
    fail "no Python 3.11, 3.12, 3.13 or 3.14 found (python3 is ${found:-not there}); install one, or name it: make setup PYTHON=/path/to/python3.12"
}

check_machine() {
    [ -n "${MAKELEVEL:-}" ] || make --version >/dev/null 2>&1 || fail "make is not there; install it (Debian: apt install make)"
    git --version >/dev/null 2>&1 || fail "git is not there; install it (Debian: apt install git)"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv or ensurepip; install them (Debian: apt install python$(version "$python")-venv), or name another: PYTHON=..."
}

# Reads pip's output: all of it goes to the log, and one short line tells how far it is.
show_progress() {
    total=$1
    count=0
    status=1
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        case $line in
            "pip ended with "*) status=${line#pip ended with } ;;
            "Installing collected packages"*) tell "installing" ;;
            "Ignoring "* | *"(from -r requirements.lock"*)
                count=$((count + 1))
                [ -t 1 ] || [ $((count % 20)) -eq 0 ] || continue
                name=${line#Requirement already satisfied: }
                name=${name#Collecting }
                name=${name#Ignoring }
                tell "package $count of $total: ${name%%[ =:]*}"
                ;;
        esac
    done
    [ ! -t 1 ] || printf '\r\033[K'
    return "$status"
}

tell() { if [ -t 1 ]; then printf '\r\033[K  %s' "$1"; else printf '  %s\n' "$1"; fi; }

pip_failed() {
    tail -n 15 "$log" >&2
    fail "pip failed (its whole output: $log); mend the cause and run make setup again: it goes on from here"
}

install() {
    : >"$log"
    # Killed at the wrong moment, pip leaves a package that looks installed but has no RECORD; it is installed anew.
    for info in "$venv"/lib/python*/site-packages/*.dist-info; do
        if [ -d "$info" ] && [ ! -f "$info/RECORD" ]; then rm -rf "$info"; fi
    done
    {
        ended=0
        "$venv/bin/python" -m pip install --require-hashes --only-binary :all: -r requirements.lock 2>&1 || ended=$?
        echo "pip ended with $ended"
    } | show_progress "$(grep -c '^[a-z]' requirements.lock)" || pip_failed
    "$venv/bin/python" -m pip install --no-deps --no-build-isolation -e . >>"$log" 2>&1 || pip_failed
    "$venv/bin/python" -m pip check >>"$log" 2>&1 || pip_failed
    tell "compiling the fast loops"
    "$venv/bin/python" -c 'from aggregator.fold import fold; from hushsum.families.lsh.compiled import engine; engine.warm_up(); fold.warm_up()' >>"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        fail "the fast loops do not compile here (the whole output: $log)"
    }
}

choose_python
made_from="$(cksum <requirements.lock) $(identity "$python") $(pwd)"
ready="$made_from $(cksum <pyproject.toml)"
label="$venv, Python $(identity "$python" | cut -d ' ' -f 1)"

if [ "$(cat "$stamp" 2>/dev/null)" = "$ready" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    echo "setup: $label is up to date"
    exit 0
fi

check_machine
rm -f "$stamp"
if [ "$(cat "$origin" 2>/dev/null)" != "$made_from" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    # The environment's own Python cannot make it anew: go back to the one that it was made with.
    base=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')
    echo "setup: making $label"
    "$base" -m venv --clear "$venv" || fail "python -m venv failed; see above"
    printf '%s\n' "$made_from" >"$origin"
fi
echo "setup: installing what requirements.lock names into $label (a minute or two, once)"
install
printf '%s\n' "$ready" >"$stamp.new"
mv "$stamp.new" "$stamp"
echo "setup: $label is ready"
