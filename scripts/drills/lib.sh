# What the drills share. Each drill begins with:  . "$(dirname "$0")/lib.sh"
#
# A drill runs a whole installation beside whatever else runs here, in a folder of its own that goes at
# the end: Postgres servers on Unix sockets, the service on a free port of the loopback address. Its
# store is the one that ARTIFACTD_S3_BUCKET and so on name, below a prefix of the drill's own, or else
# the one of `artifactd dev`. What else is in that store is not touched.
#
#   DRILL_ARTIFACTD  the program; otherwise the one on PATH, or that of `make build`
#   DRILL_PG_BIN     the folder of Postgres's programs; otherwise that of pg_ctl on PATH, or the newest installed
#   DRILL_KEEP       if not empty, the folder is left behind, for a look at the logs
#
# Postgres refuses root: its servers then run as the account postgres. They sync what they commit, as
# the service demands, but what initdb and pg_basebackup make need not outlive a power cut here.

set -eu
# Nothing of a developer's own installation may be found by a drill.
unset ARTIFACTD_URL ARTIFACTD_TOKEN ARTIFACTD_DATABASE_URL ARTIFACTD_DATA ARTIFACTD_LISTEN PGHOST PGPORT PGUSER PGDATABASE PGOPTIONS

drill=$(basename "$0" .sh)
say() { echo "$drill: $*"; }
saw() { echo "$drill:     $*"; }
fail() {
	echo "$drill: FAILED: $*" >&2
	exit 1
}

# --- the folder, and how everything ends -----------------------------------------------------------

source_dir=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/drill.XXXXXX")
chmod 711 "$work" # the account of Postgres passes through
cd "$work"
mkdir log
: >servers

finish() {
	status=$?
	trap - EXIT
	trap '' HUP INT PIPE TERM
	set +e # whatever fails here, the rest is ended all the same
	[ -z "${service:-}" ] || end_process "$service"
	while read -r server; do
		postgres_tool pg_ctl -D "$server/data" -m immediate -w stop >>log/pg_ctl 2>&1 || true # it may be down
	done <servers
	[ -z "${dev:-}" ] || end_process "$dev"
	if [ "$status" -ne 0 ] && [ -s log/service ]; then
		echo "$drill: the service's log ends:" >&2
		tail -n 15 log/service >&2
	fi
	cd /
	if [ -n "${DRILL_KEEP:-}" ]; then say "everything is kept in $work"; else rm -rf "$work"; fi
	if [ "$status" -eq 0 ]; then say "done: everything was as docs/recovery.md says"; fi
	exit "$status"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 141' PIPE # whoever read this is gone
trap 'exit 143' TERM

end_process() {
	kill "$1" 2>/dev/null || true # it may have ended
	wait "$1" 2>/dev/null || true # its exit code was looked at, if it mattered
}

# --- the programs ----------------------------------------------------------------------------------

find_artifactd() {
	for a in ${DRILL_ARTIFACTD:-"$(command -v artifactd || true)" "$source_dir/../../.cache/bin/artifactd"}; do
		if [ -x "$a" ]; then
			echo "$a"
			return
		fi
	done
	fail "no artifactd found: run \`make build\`, or name it in DRILL_ARTIFACTD"
}

find_postgres() {
	newest=
	for bin in ${DRILL_PG_BIN:-/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin "$(dirname "$(command -v pg_ctl || echo /none/pg_ctl)")"}; do
		if [ -x "$bin/pg_ctl" ] && [ -x "$bin/initdb" ] && [ -x "$bin/pg_basebackup" ]; then newest=$bin; fi
	done
	[ -n "$newest" ] || fail "no Postgres found: install its server package, or name the folder of its programs in DRILL_PG_BIN"
	echo "$newest"
}

# as_postgres runs a command as the account of the Postgres servers.
as_postgres() {
	if [ "$(id -u)" -ne 0 ]; then
		"$@"
	else
		runuser -u postgres -- "$@"
	fi
}

# postgres_tool runs one of Postgres's programs, without the settings of whoever started the drill.
postgres_tool() {
	tool=$1
	shift
	as_postgres env -i PATH="$PATH" LC_ALL=C "$pg_bin/$tool" "$@"
}

# expect CODE COMMAND... runs artifactd and demands an exit code; what it printed is in the file out.
expect() {
	want=$1
	shift
	got=0
	"$artifactd" "$@" >out 2>err </dev/null || got=$?
	[ "$got" -eq "$want" ] || fail "artifactd $* ended with $got instead of $want: $(cat out err)"
}

# field NAME prints a member of the JSON on standard input.
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p" | head -n 1; }

# until_true WHAT COMMAND... waits until a command succeeds, for minutes if it must.
until_true() {
	what=$1
	shift
	tries=0
	until "$@" >/dev/null 2>err; do
		tries=$((tries + 1))
		[ "$tries" -lt 900 ] || fail "waited too long until $what: $(cat err)"
		sleep 0.5
	done
}

# --- Postgres servers ------------------------------------------------------------------------------

# folder makes a folder that belongs to the account of Postgres.
folder() {
	mkdir -p "$1"
	if [ "$(id -u)" -eq 0 ]; then chown postgres "$1"; fi
	chmod 700 "$1"
}

# new_server NAME [SETTING...] makes an empty server and starts it.
new_server() {
	name=$1
	shift
	folder "$work/$name"
	postgres_tool initdb -D "$work/$name/data" -U postgres -A trust -E UTF8 --locale=C --no-sync --no-instructions >>log/initdb 2>&1 ||
		fail "initdb: $(tail -n 5 log/initdb)"
	start_server "$name" "$@"
}

# start_server NAME [SETTING...] starts the server whose data is in NAME/data. Settings stay for later
# starts.
start_server() {
	name=$1
	shift
	grep -qx "$work/$name" servers || echo "$work/$name" >>servers
	for setting in "$@"; do
		echo "$setting" | as_postgres tee -a "$work/$name/data/postgresql.conf" >/dev/null
	done
	postgres_tool pg_ctl -D "$work/$name/data" -l "$work/$name/log" -w -t 120 -o \
		"-c listen_addresses= -c unix_socket_directories=$work/$name -c unix_socket_permissions=0777 -c port=5432" start >>log/pg_ctl 2>&1 ||
		fail "Postgres $name does not start: $(as_postgres tail -n 15 "$work/$name/log")"
	chmod 711 "$work/$name" # the service reaches the socket; the data below is 0700
}

# stop_server NAME [MODE] stops a server: fast, which hands everything to its standbys, or immediate,
# which is what a crash leaves.
stop_server() {
	postgres_tool pg_ctl -D "$work/$1/data" -m "${2:-fast}" -w stop >>log/pg_ctl 2>&1 || fail "Postgres $1 does not stop: $(tail -n 3 log/pg_ctl)"
}

promote() {
	postgres_tool pg_ctl -D "$work/$1/data" -w promote >>log/pg_ctl 2>&1 || fail "Postgres $1 cannot be promoted: $(tail -n 3 log/pg_ctl)"
}

# sql SERVER STATEMENT runs a statement as the owner and prints what it answers.
sql() {
	postgres_tool psql -X -At -v ON_ERROR_STOP=1 -h "$work/$1" -U postgres -d artifactd -c "$2"
}

base_backup() { # of the server $1 into the folder $2/data
	from=$1 to=$2
	shift 2
	folder "$work/$to"
	postgres_tool pg_basebackup -h "$work/$from" -U postgres -D "$work/$to/data" --checkpoint=fast --no-sync "$@" >>log/pg_basebackup 2>&1 ||
		fail "pg_basebackup: $(tail -n 3 log/pg_basebackup)"
}

new_standby() { # $1 of the server $2
	base_backup "$2" "$1" --write-recovery-conf
	start_server "$1"
	until_true "the standby $1 streams" streams "$2"
}

streams() { [ "$(sql "$1" "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")" -ge 1 ]; }

caught_up() { [ "$(sql "$1" "SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication")" = t ]; }

takes_writes() { [ "$(sql "$1" "SELECT pg_is_in_recovery()")" = f ]; }

# url ROLE SERVER... is the address of the database on whichever of the servers takes writes.
url() {
	role=$1
	shift
	hosts='' ports=''
	for server in "$@"; do
		hosts="$hosts,$work/$server" ports="$ports,5432"
	done
	echo "postgres://$role@/artifactd?host=${hosts#,}&port=${ports#,}&target_session_attrs=read-write"
}

# --- the installation ------------------------------------------------------------------------------

# use_store names the store, and gives the drill a prefix of its own in it.
use_store() {
	prefix=drill-$(date -u +%Y%m%dT%H%M%SZ)-$$/
	if [ -n "${ARTIFACTD_S3_BUCKET:-}" ]; then
		say "the store is the bucket $ARTIFACTD_S3_BUCKET, below $prefix: remove that afterwards"
	else
		"$artifactd" dev --data "$work/dev" --listen 127.0.0.1:0 >log/dev 2>&1 </dev/null &
		dev=$!
		until_true "artifactd dev is ready" dev_is_ready
		for name in ENDPOINT REGION BUCKET PATH_STYLE ACCESS_KEY_ID SECRET_ACCESS_KEY; do
			eval "export ARTIFACTD_S3_$name=\$(sed -n 's/^ARTIFACTD_S3_$name=//p' '$work/dev/client.env')"
		done
		say "the store is that of \`artifactd dev\`"
	fi
	export ARTIFACTD_S3_PREFIX="$prefix"
}

dev_is_ready() {
	kill -0 "$dev" 2>/dev/null || fail "artifactd dev has ended: $(cat log/dev)"
	test -s "$work/dev/client.env"
}

# install_on SERVER makes the database, the service's role and an access token on it.
install_on() {
	make_database "$1"
	ARTIFACTD_DATABASE_URL=$(url artifactd "$1")
	export ARTIFACTD_DATABASE_URL
	expect 0 token create drill --scope admin --pattern '*'
	ARTIFACTD_TOKEN=$(cat out)
	export ARTIFACTD_TOKEN
}

make_database() {
	postgres_tool createdb -h "$work/$1" -U postgres artifactd
	expect 0 migrate --database-url "$(url postgres "$1")"
	sql "$1" "CREATE ROLE artifactd LOGIN IN ROLE artifactd_service" >/dev/null
}

# serve starts the service and waits until it answers; writes may still wait.
serve() {
	: >log/service # here: the new process may come to it after the look at what the one before had written
	"$artifactd" serve --listen 127.0.0.1:0 --gc-interval 0 --reconcile-interval 0 >>log/service 2>&1 </dev/null &
	service=$!
	until_true "the service answers" listening
	ARTIFACTD_URL=http://$(service_address)
	export ARTIFACTD_URL
}

listening() {
	kill -0 "$service" 2>/dev/null || fail "the service has ended"
	[ -n "$(service_address)" ]
}

service_address() {
	sed -n 's/.*serving on" address=\([^ ]*\).*/\1/p; s/.*serving on \(127[0-9.:]*\).*/\1/p' log/service | head -n 1
}

end_service() {
	end_process "$service"
	service=
}

api() { curl -sS -H "Authorization: Bearer $ARTIFACTD_TOKEN" -H 'Content-Type: application/json' "$@"; }

# publish NAME TEXT publishes a file with that text.
publish() {
	echo "$2" >file.txt
	expect 0 publish "$1" file.txt
}

# shows NAME TEXT demands what a reader gets.
shows() {
	expect 0 get "$1" -O -
	[ "$(cat out)" = "$2" ] || fail "$1 shows \"$(cat out)\" instead of \"$2\""
	saw "readers of $1 get \"$2\""
}

version_of() { "$artifactd" resolve "$1" -o json | field version; }

# old_worker NAME takes a lease of an hour, which the drill's history loses or leaves behind.
old_worker() {
	old_name=$1
	api "$ARTIFACTD_URL/v1/pointers/$1/leases" -d '{"holder": "old worker", "ttl_seconds": 3600}' >lease
	old_lease=$(field lease_id <lease)
	old_token=$(field token <lease)
	[ -n "$old_lease" ] || fail "the old worker got no lease: $(cat lease)"
	saw "an old worker holds the lease $old_token of $1"
}

# old_worker_is_refused: whatever generation numbers repeat, the old token's epoch is over.
old_worker_is_refused() {
	api "$ARTIFACTD_URL/v1/leases/$old_lease/publish" \
		-d "{\"token\": \"$old_token\", \"operation_id\": \"018f3c2e-5b7a-7c1d-9e2f-$(od -An -N6 -tx1 /dev/urandom | tr -d ' \n')\"}" >answer
	[ "$(field reason <answer)" = epoch-superseded ] || fail "the old worker's publish was answered: $(cat answer)"
	saw "the old worker's publish on $old_name with token $old_token is refused: epoch-superseded"
}

# probe asks for a write, once: the command would try again for half a minute. What was answered is in
# the file answer.
probe() { api -X PUT "$ARTIFACTD_URL/v1/pointers/probe" -d '{}' >answer; }

writes_go_on() { probe && grep -q '"name": *"probe"' answer; }

# in_step waits until the bucket bears witness of every decision and has a record of every version.
in_step() {
	until_true "the bucket has a witness and records of everything" is_in_step
}

is_in_step() {
	"$artifactd" recover -o json --skip-objects >step </dev/null || return 1
	[ "$(field decisions <step)" = "$(field witnessed_decisions <step)" ] &&
		[ "$(metric artifactd_outbox_records)" = 0 ]
}

metric() { api "$ARTIFACTD_URL/metrics" | sed -n "s/^$1 //p"; }

# writes_wait demands what is answered while a loss waits for a person: reads go on, writes do not.
writes_wait() {
	until_true "the service notices" noticed
	probe
	[ "$(field code <answer)" = history-changed ] || fail "a write was answered: $(cat answer)"
	saw "writes are refused: $(field detail <answer)"
	expect 15 recover -o json
	{ [ "$(field state <out)" = "history lost" ] && [ "$(field lost_decisions <out)" -gt 0 ]; } || fail "recover shows $(cat out)"
	saw "recover: $(field lost_decisions <out) decisions are known to be lost, of $(field known_decisions <out)"
	sed -n '/"by_epoch"/,$p' out >lost # what the lost publish left in the bucket: one object
	{ [ "$(field epoch <lost)" = 1 ] && [ "$(field objects <lost)" = 1 ]; } || fail "recover does not show the one object that is unknown: $(cat out)"
	saw "recover: one object of $(field bytes <lost) bytes is unknown to the database, of epoch $(field epoch <lost)"
}

noticed() { api "$ARTIFACTD_URL/readyz" | grep -q read-only; }

# epoch prints the epoch that the database is in.
epoch() { metric artifactd_history_epoch; }

epoch_is() { [ "$(epoch)" = "$1" ]; }

# lists_what_was_lost demands that the bucket's records tell of a lost version.
lists_what_was_lost() {
	expect 0 recover --from-bucket --dry-run --database-url "$(url postgres "$1")"
	grep -q restorable out || fail "the lost version is not listed: $(cat out)"
	saw "the bucket has what was lost: $(grep restorable out)"
}

# bring_back_all brings back what was lost, as the owner of the tables on a server, and lets collection go on.
bring_back_all() {
	expect 0 recover --from-bucket --all --yes --database-url "$(url postgres "$1")" -o table
	saw "$(grep -c restored out) versions are brought back"
	expect 0 verify
	saw "verify: $(sed -n 's/^artifacts checked *//p' out) artifacts have their objects"
	expect 0 recover --resume-collection
	expect 0 gc reconcile --dry-run
	expect 0 gc run
	saw "collection goes on"
}

artifactd=$(find_artifactd)
pg_bin=$(find_postgres)
if [ "$(id -u)" -eq 0 ]; then
	runuser -u postgres -- true 2>err || fail "Postgres does not run as root and there is no account postgres to run it as: run this as an ordinary user ($(cat err))"
fi
say "Postgres is $("$pg_bin/postgres" --version | sed 's/[^0-9]*//'), the folder is $work"
use_store
