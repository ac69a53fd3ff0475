#!/bin/sh
# What `make lint` checks. Every check runs, and the exit code says whether all were clean.
set -u
failed=0

# check NAME COMMAND...: runs one check and remembers its failure.
check() {
	name=$1
	shift
	if "$@"; then
		echo "lint: $name ok" >&2
	else
		echo "lint: $name FAILED" >&2
		failed=1
	fi
}

ours() { git ls-files -co --exclude-standard -- "$@" | while read -r f; do [ -f "$f" ] && echo "$f"; done; }

formatted() {
	unformatted=$(ours '*.go' | xargs gofmt -l)
	[ -z "$unformatted" ] && return 0
	echo "run gofmt -w on:" >&2
	echo "$unformatted" >&2
	return 1
}

# A skipped test is a test that nobody runs: make what it needs installable instead.
none_skipped() {
	! ours '*_test.go' | xargs grep -nE '\.(Skip|Skipf|SkipNow)\(' /dev/null
}

generated() {
	ours '*.go' | xargs grep -lE '^// Code generated .* DO NOT EDIT\.$' /dev/null | sort | while read -r f; do
		echo "$f $(git hash-object "$f")"
	done
}

generated_is_current() {
	before=$(generated)
	go generate ./... || return 1
	after=$(generated)
	[ "$before" = "$after" ] && return 0
	echo "generated code differed and was written anew; commit it (make generate)" >&2
	return 1
}

check gofmt formatted
check "go vet" go vet ./...
check "go vet -tags nodevs3" go vet -tags nodevs3 ./cmd/...
check staticcheck go tool -modfile=tools/go.mod staticcheck ./...
check "generated code" generated_is_current
check "no skipped tests" none_skipped
exit $failed
