package gc_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
)

// A bucket that retains every object by default: garbage is reported as retained, the run is complete
// without it, and the keys wait in the ledger until the store lets go.
func TestScheduleG8BucketRetainsByDefault(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		b := testenv.Bucket(t, server, testenv.ObjectLock())
		_, err := b.Client().PutObjectLockConfiguration(t.Context(), &s3.PutObjectLockConfigurationInput{
			Bucket: &b.Name, ObjectLockConfiguration: &types.ObjectLockConfiguration{
				ObjectLockEnabled: types.ObjectLockEnabledEnabled,
				Rule:              &types.ObjectLockRule{DefaultRetention: &types.DefaultRetention{Mode: types.ObjectLockRetentionModeGovernance, Days: new(int32(1))}},
			}})
		if err != nil {
			t.Fatal(err)
		}
		s.store = openStore(t, b, s.layout)
		s.pointer("p", 0, 0)
		s.version("p", "one", "two")
		s.version("p", "three")
		for range 2 {
			report, err := s.collector(s.store).RunOnce(t.Context(), gc.RunOptions{ResumeGrace: new(time.Duration)})
			if err != nil || report.Partial() || report.Retained != 2 || report.Deleted.Objects != 0 || report.LedgerSize != 2 {
				t.Errorf("%+v, %v, want two objects retained", report, err)
			}
			s.exec(`UPDATE artifactd.deletion SET not_before = clock_timestamp(), final_after = clock_timestamp() - interval '1 second'`)
		}
		if n := s.number(`SELECT count(*) FROM artifactd.deletion WHERE last_error LIKE '%retains%'`); n != 2 {
			t.Errorf("%d keys say why they wait, want 2", n)
		}
	})
}
