#!/bin/sh
# Makes sure that Postgres 15 or newer is installed: `dev` and the tests start it as a child
# process of their own. Only its programs are needed; no server of the system's is started.
set -eu

wanted=15

# found prints the newest usable installation's folder.
found() {
	for dir in $(command -v postgres >/dev/null 2>&1 && dirname "$(command -v postgres)") \
		/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin \
		/opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin \
		/Applications/Postgres.app/Contents/Versions/latest/bin; do
		[ -x "$dir/postgres" ] && [ -x "$dir/initdb" ] && [ -x "$dir/pg_ctl" ] || continue
		major=$("$dir/postgres" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
		if [ "$major" -ge "$wanted" ]; then
			echo "$dir"
			return 0
		fi
	done
	return 1
}

say() { echo "postgres: $*" >&2; }
again() { sh "$(dirname "$0")/retry.sh" "$@"; }

found >/dev/null && exit 0

sudo=
if [ "$(uname -s)" != Darwin ] && [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null 2>&1 || {
		say "Postgres $wanted or newer is missing and there is no sudo; as root, install the package \"postgresql\""
		exit 1
	}
	sudo=sudo
fi

# Debian's package creates and starts a cluster on installation unless postgresql-common was told
# otherwise first. The setting is taken away again: the next installation is the owner's business.
apt_install() {
	say "installing with apt-get"
	export DEBIAN_FRONTEND=noninteractive
	again $sudo apt-get update -qq
	again $sudo apt-get install -y -qq --no-install-recommends postgresql-common >&2
	setting=/etc/postgresql-common/createcluster.d/artifactd-no-cluster.conf
	$sudo mkdir -p "$(dirname "$setting")"
	echo 'create_main_cluster = false' | $sudo tee "$setting" >/dev/null
	status=0
	again $sudo apt-get install -y -qq --no-install-recommends postgresql >&2 || status=$?
	$sudo rm -f "$setting"
	return $status
}

say "Postgres $wanted or newer not found"
if command -v apt-get >/dev/null 2>&1; then
	apt_install
elif command -v dnf >/dev/null 2>&1; then
	say "installing with dnf"
	again $sudo dnf install -y -q postgresql-server postgresql-contrib >&2
elif command -v brew >/dev/null 2>&1; then
	say "installing with brew"
	again brew install postgresql@17 >&2
else
	say "no apt-get, dnf or brew here; install Postgres $wanted or newer and put its bin folder on PATH"
	exit 1
fi

found >/dev/null || {
	say "this system's package is older than $wanted; install a newer one from the PostgreSQL project's own repository and put its bin folder on PATH"
	exit 1
}
