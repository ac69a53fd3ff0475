#!/bin/sh
# retry.sh COMMAND...: runs a command that needs the network, again when it fails: five times in all,
# with pauses that grow to half a minute. Its exit code is that of the last one.
set -u
for pause in 2 5 15 30 0; do
	"$@" && exit 0
	status=$?
	[ "$pause" -eq 0 ] && exit "$status"
	echo "retry: \"$*\" failed ($status); again in $pause s" >&2
	sleep "$pause"
done
