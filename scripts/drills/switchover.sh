#!/bin/sh
# Drill: a planned switchover to a standby. Nothing is lost, the epoch is raised by itself, and the old
# primary becomes the new one's standby.
. "$(dirname "$0")/lib.sh"

say "a primary and a standby, and a service that finds whichever takes writes"
new_server one
install_on one
new_standby two one
ARTIFACTD_DATABASE_URL=$(url artifactd one two)
serve
until_true "writes are admitted" writes_go_on
expect 0 pointer create report
publish report "before the switchover"
kept=$(version_of report)
old_worker report
before=$(epoch)

say "switch over: stop the primary, which hands everything over, and promote the standby"
began=$(date +%s)
stop_server one
promote two
until_true "the epoch was raised" epoch_is $((before + 1))
until_true "writes are admitted" writes_go_on
saw "writes go on $(($(date +%s) - began)) s after the old primary was told to stop"
shows report "before the switchover"
[ "$(version_of report)" = "$kept" ] || fail "report shows $(version_of report) instead of $kept"
old_worker_is_refused
expect 0 recover -o json
[ "$(field lost_decisions <out)" = 0 ] || fail "recover shows $(cat out)"
saw "nothing is lost; the epoch is $(field epoch <out), and collection is held since $(field collection_held_at <out)"
[ "$(field epoch <out)" = $((before + 1)) ] || fail "the epoch was raised more than once: $(cat out)"
expect 14 gc run
expect 0 recover --resume-collection
expect 0 gc run
publish report "after the switchover"

say "the old primary follows the new one"
as_postgres touch "$work/one/data/standby.signal"
start_server one "primary_conninfo = 'host=$work/two user=postgres'"
until_true "the old primary streams" streams two
shows report "after the switchover"
