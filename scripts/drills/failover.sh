#!/bin/sh
# Drill: the primary dies and a standby that lags is promoted: acknowledged publishes are lost. Writes
# wait for a person, and what was lost comes back from the bucket.
. "$(dirname "$0")/lib.sh"

say "a primary and a standby, and a service that finds whichever takes writes"
new_server one
install_on one
new_standby two one
ARTIFACTD_DATABASE_URL=$(url artifactd one two)
serve
until_true "writes are admitted" writes_go_on
expect 0 pointer create report
publish report "on both servers"
until_true "the standby has it" caught_up one
kept=$(version_of report)

say "the standby falls behind, and the primary dies"
stop_server two
publish report "on the primary alone"
old_worker report
in_step
stop_server one immediate
start_server two
promote two
shows report "on both servers"
[ "$(version_of report)" = "$kept" ] || fail "report shows $(version_of report) instead of $kept"
writes_wait

say "look, decide, go on"
lists_what_was_lost two
expect 0 recover --yes
until_true "writes are admitted" writes_go_on
bring_back_all two
shows report "on the primary alone"
old_worker_is_refused
publish report "after the failover"
shows report "after the failover"
