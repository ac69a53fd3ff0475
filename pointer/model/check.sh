#!/bin/sh
# Checks the protocol's model exhaustively, and that every broken variant of it is caught.
set -eu

model=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/protocol.pml

say() { echo "model: $*" >&2; }

as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

install_tools() {
	if command -v apt-get >/dev/null 2>&1; then
		say "installing spin and gcc with apt-get"
		as_root apt-get update -qq
		as_root apt-get install -y -qq --no-install-recommends spin gcc libc6-dev >&2
	elif command -v brew >/dev/null 2>&1; then
		say "installing spin with brew"
		brew install spin >&2
	else
		say "spin and a C compiler are needed; install them and put them on PATH"
		exit 1
	fi
}

command -v spin >/dev/null 2>&1 && command -v cc >/dev/null 2>&1 || install_tools

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# check NAME [-DVARIANT]: builds the verifier and runs it; its output is NAME.out.
check() {
	name=$1
	shift
	mkdir "$name"
	(
		cd "$name"
		spin "$@" -a "$model" >spin.out 2>&1 || { cat spin.out >&2; exit 1; }
		cc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -o pan pan.c
		./pan -m200000 >../"$name.out" 2>&1 || true
	)
	grep -q 'errors: ' "$name.out" || { say "$name did not finish:"; cat "$name.out" >&2; exit 1; }
}

errors() { sed -n 's/.*errors: \([0-9]*\).*/\1/p' "$1.out"; }

failed=0
check protocol
if grep -q 'Search not completed\|max search depth too small' protocol.out; then
	say "the search was cut short:"
	cat protocol.out >&2
	exit 1
fi
states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' protocol.out)
if [ "$(errors protocol)" -eq 0 ]; then
	echo "model: no violation in $states states"
else
	echo "model: VIOLATION of the protocol"
	cat protocol.out
	(cd protocol && ./pan -r 2>/dev/null || true) | tail -60
	failed=1
fi
for variant in CLOCK FACTS EPOCH SETTLE OUTCOME RELEASE EXPIRY; do
	check "$variant" "-DBROKEN_$variant"
	if [ "$(errors "$variant")" -gt 0 ]; then
		echo "model: broken $variant is caught: $(sed -n 's/^pan:[0-9]*: //p' "$variant.out" | head -1)"
	else
		echo "model: broken $variant is NOT caught"
		failed=1
	fi
done
exit $failed
