#!/bin/sh
# Makes sure that libfaketime is installed: a test sets the clock of a Postgres server with it.
set -eu

found() {
	ls /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/lib64/faketime/libfaketimeMT.so.1 /usr/lib/faketime/libfaketimeMT.so.1 \
		/opt/homebrew/lib/faketime/libfaketime.1.dylib /usr/local/lib/faketime/libfaketime.1.dylib 2>/dev/null | grep -q .
}

found && exit 0
again() { sh "$(dirname "$0")/retry.sh" "$@"; }
sudo=
[ "$(uname -s)" = Darwin ] || [ "$(id -u)" -eq 0 ] || sudo=sudo
echo "faketime: installing libfaketime, for tests" >&2
if command -v apt-get >/dev/null 2>&1; then
	export DEBIAN_FRONTEND=noninteractive
	again $sudo apt-get update -qq
	again $sudo apt-get install -y -qq --no-install-recommends libfaketime >&2
elif command -v dnf >/dev/null 2>&1; then
	again $sudo dnf install -y -q libfaketime >&2
elif command -v brew >/dev/null 2>&1; then
	again brew install libfaketime >&2
fi
found || {
	echo "faketime: libfaketime could not be installed; install your system's package of that name" >&2
	exit 1
}
