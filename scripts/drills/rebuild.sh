#!/bin/sh
# Drill: the database is gone and there is no backup: the catalogue is built anew from the bucket alone.
. "$(dirname "$0")/lib.sh"

say "an installation with two pointers"
new_server lost
install_on lost
serve
until_true "writes are admitted" writes_go_on
expect 0 pointer create report --keep-versions 7 --label team=reports
expect 0 pointer create notes
publish report "the first report"
publish report "the second report"
publish notes "a note"
old_worker report
in_step
end_service
stop_server lost immediate
rm -rf lost
saw "the server and its data are gone"

say "an empty database becomes the bucket's installation"
new_server new
make_database new
ARTIFACTD_DATABASE_URL=$(url artifactd new)
expect 0 recover --from-bucket --dry-run --database-url "$(url postgres new)"
saw "the bucket has $(grep -c restorable out) versions"
expect 0 recover --from-bucket --all --yes --database-url "$(url postgres new)"
[ "$(grep -c restored out)" -ge 3 ] || fail "not everything came back: $(cat out)"
expect 0 token create drill --scope admin --pattern '*'
ARTIFACTD_TOKEN=$(cat out)
serve
until_true "writes are admitted" writes_go_on
shows report "the second report"
shows notes "a note"
expect 0 pointer show report -o json
grep -q '"team": *"reports"' out || fail "the settings of report did not come back: $(cat out)"
saw "the pointer's settings are back"
expect 0 history report -o json
saw "report has $(grep -c '"published"' out) published versions"
expect 0 verify --deep
saw "verify: $(sed -n 's/^artifacts checked *//p' out) artifacts have their objects, byte for byte"
expect 0 recover --resume-collection
expect 0 gc run
old_worker_is_refused
publish report "the third report"
shows report "the third report"
