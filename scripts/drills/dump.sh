#!/bin/sh
# Drill: pg_dump, and pg_restore into a new server, which has another system identifier.
. "$(dirname "$0")/lib.sh"

say "a server, and a dump of its database"
new_server old
install_on old
serve
until_true "writes are admitted" writes_go_on
expect 0 pointer create report
publish report "in the dump"
kept=$(version_of report)
postgres_tool pg_dump -h "$work/old" -U postgres --format=custom artifactd >dump
saw "the dump has $(wc -c <dump | tr -d ' ') bytes"
publish report "after the dump"
old_worker report
in_step
postgres_tool pg_dumpall -h "$work/old" -U postgres --roles-only --no-role-passwords >roles.sql
end_service
stop_server old

say "restore it into a new server"
new_server new
# The roles belong to the server, not to the database. The one that owns everything is there already.
postgres_tool psql -X -q -h "$work/new" -U postgres -d postgres <roles.sql >log/roles 2>&1
postgres_tool createdb -h "$work/new" -U postgres artifactd
postgres_tool pg_restore -h "$work/new" -U postgres -d artifactd --exit-on-error <dump
expect 0 migrate --database-url "$(url postgres new)"
ARTIFACTD_DATABASE_URL=$(url artifactd new)
serve
shows report "in the dump"
[ "$(version_of report)" = "$kept" ] || fail "report shows $(version_of report) instead of $kept"
writes_wait

say "look, decide, go on"
lists_what_was_lost new
expect 0 recover --yes
until_true "writes are admitted" writes_go_on
bring_back_all new
shows report "after the dump"
old_worker_is_refused
