#!/bin/sh
# Makes sure that what the tests use besides Go and Postgres is installed: a C compiler for the race
# detector, curl and openssl for the README's commands, which a test runs, and libfaketime, with which
# another sets the clock of a Postgres server.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }

# has_headers: a compiler alone does not compile a program.
has_headers() { echo '#include <stdlib.h>' | "${CC:-$(go env CC)}" -E - >/dev/null 2>&1; }

has_faketime() {
	ls /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/lib64/faketime/libfaketimeMT.so.1 /usr/lib/faketime/libfaketimeMT.so.1 \
		/opt/homebrew/lib/faketime/libfaketime.1.dylib /usr/local/lib/faketime/libfaketime.1.dylib 2>/dev/null | grep -q .
}

# missing prints what is missing, by names that say what it is: compiler curl openssl libfaketime.
missing() {
	has_headers || echo compiler
	have curl || echo curl
	have openssl || echo openssl
	has_faketime || echo libfaketime
}

again() { sh "$(dirname "$0")/retry.sh" "$@"; }

wanted=$(missing)
[ -n "$wanted" ] || exit 0
sudo=
if [ "$(uname -s)" != Darwin ] && [ "$(id -u)" -ne 0 ]; then
	have sudo || {
		echo "testtools: missing for the tests, and there is no sudo to install it with:" $wanted >&2
		exit 1
	}
	sudo=sudo
fi
echo "testtools: installing for the tests:" $wanted >&2
if have apt-get; then
	export DEBIAN_FRONTEND=noninteractive
	again $sudo apt-get update -qq
	again $sudo apt-get install -y -qq --no-install-recommends $(echo "$wanted" | sed 's/^compiler$/gcc libc6-dev/') >&2
elif have dnf; then
	again $sudo dnf install -y -q $(echo "$wanted" | sed 's/^compiler$/gcc glibc-devel/') >&2
elif have brew; then
	# The compiler is Apple's: xcode-select --install.
	again brew install $(echo "$wanted" | sed '/^compiler$/d') >&2
fi
wanted=$(missing)
[ -z "$wanted" ] || {
	echo "testtools: could not be installed, though the tests need it:" $wanted >&2
	echo "testtools: install it with your system's package manager (the compiler: gcc or clang with the C library's headers)" >&2
	exit 1
}
