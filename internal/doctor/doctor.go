package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

// Verdict says how well a store does on one point.
type Verdict string

// The verdicts.
const (
	// OK: as artifactd would have it.
	OK Verdict = "ok"
	// Degraded: artifactd works, in another way or with a restriction.
	Degraded Verdict = "degraded"
	// Missing: artifactd needs this and does not have it.
	Missing Verdict = "missing"
)

// Finding is what one probe found.
type Finding struct {
	Probe   string  `json:"probe"`
	Verdict Verdict `json:"verdict"`
	// Found is what the store did.
	Found string `json:"found"`
	// Means is what artifactd does instead (degraded) or what breaks (missing); empty for ok.
	Means string `json:"means,omitempty"`
}

// Report is all findings, in the order of the probes.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Count is how many findings have a verdict.
func (r Report) Count(v Verdict) int {
	n := 0
	for _, f := range r.Findings {
		if f.Verdict == v {
			n++
		}
	}
	return n
}

// Bucket tells what a [artifacts.Store] hides from its callers.
type Bucket interface {
	// Versioning is "Enabled", "Suspended" or "".
	Versioning(ctx context.Context) (string, error)
	// DefaultRetention is the lock that every new object gets, or "".
	DefaultRetention(ctx context.Context) (string, error)
	// DeletesInBatches deletes the keys with one request, and reports whether the store did so and
	// told the fate of each.
	DeletesInBatches(ctx context.Context, keys []string) (bool, error)
}

// Target is what is examined.
type Target struct {
	// Store signs for this process's endpoint.
	Store  artifacts.Store
	Bucket Bucket
	// Public signs for the endpoint that clients use. Nil when that is the same.
	Public artifacts.BlobSigner
	// HTTP sends signed requests. It must not follow redirects.
	HTTP *http.Client
	// Prefix of the installation: empty, or ending in "/".
	Prefix string
	// DatabaseClock reads the database's clock. Nil leaves that probe out.
	DatabaseClock func(ctx context.Context) (time.Time, error)
}

// urlTTL is the life of the signed URLs of one probe.
const urlTTL = 2 * time.Minute

// outcome is a finding without its name.
type outcome struct {
	verdict      Verdict
	found, means string
}

func fine(format string, args ...any) outcome {
	return outcome{verdict: OK, found: fmt.Sprintf(format, args...)}
}

// probe is one point.
type probe struct {
	name string
	run  func(*examination, context.Context) (outcome, error)
}

// probes are all, in the order of the report. The first is what nothing works without.
func probes() []probe {
	return []probe{
		{"write, read, list, delete", (*examination).visibility},
		{"empty object", (*examination).empty},
		{"SHA-256 on HEAD", (*examination).checksum},
		{"range reads", (*examination).ranges},
		{"create-only PUT", (*examination).createOnlyPut},
		{"create-only PUT, concurrent", (*examination).concurrentPuts},
		{"signed PUT, other bytes", (*examination).tamperedBytes},
		{"signed PUT, other headers", (*examination).tamperedHeaders},
		{"signed GET, response overrides", (*examination).overrides},
		{"public endpoint", (*examination).publicEndpoint},
		{"anonymous requests", (*examination).anonymous},
		{"multipart upload", (*examination).multipart},
		{"multipart part, other bytes", (*examination).tamperedPart},
		{"multipart abort", (*examination).abort},
		{"multipart listing", (*examination).listUploads},
		{"create-only Complete", (*examination).concurrentCompletes},
		{"batch delete", (*examination).batchDelete},
		{"versioning", (*examination).versioning},
		{"object lock", (*examination).objectLock},
		{"clock of the store", (*examination).storeClock},
		{"clock of the database", (*examination).databaseClock},
	}
}

// errNotAsked leaves a probe out of the report.
var errNotAsked = errors.New("there is nothing to probe")

// Run examines the target. It returns an error only when it could not: the store does not answer
// the first probe, ctx ended, or what was made could not be removed. A store that does badly is no
// error; see [Report.Count].
func Run(ctx context.Context, t Target) (report Report, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return report, err
	}
	x := &examination{Target: t, folder: t.Prefix + "probe/" + id.String() + "/"}
	x.retention, _ = t.Bucket.DefaultRetention(ctx) // its own probe reports the error
	defer func() { err = errors.Join(err, x.cleanUp(ctx)) }()
	for i, p := range probes() {
		o, err := p.run(x, ctx)
		switch {
		case errors.Is(err, errNotAsked):
			continue
		case ctx.Err() != nil:
			return report, context.Cause(ctx)
		case err != nil && i == 0:
			return report, fmt.Errorf("%s: %w", p.name, err)
		case err != nil:
			o = outcome{Missing, "the store failed: " + err.Error(), "what was to be probed does not work; artifactd may fail where it uses it"}
		}
		report.Findings = append(report.Findings, Finding{Probe: p.name, Verdict: o.verdict, Found: o.found, Means: o.means})
	}
	return report, nil
}

// examination is one run.
type examination struct {
	Target
	folder string // every key begins with it

	mu      sync.Mutex
	keys    []string
	uploads []artifacts.Multipart
	// retention is the lock that the bucket gives every object, as far as the bucket tells.
	retention string
	// noMultipart: the store has none, so that the rest about them is not asked.
	noMultipart bool
}

// kept reports whether a deletion was refused because the store retains the object. Not every store
// says so in the refusal, or at the object: then it is so when the bucket retains all.
func (x *examination) kept(err error) bool {
	return errors.Is(err, artifacts.ErrRetained) || err != nil && x.retention != ""
}

// object is a new key for body.
func (x *examination) object(body []byte) artifacts.Upload {
	key := x.folder + uuid.NewString()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keys = append(x.keys, key)
	return x.objectAt(key, body)
}

// objectAt is an upload of body to a key that is remembered already.
func (x *examination) objectAt(key string, body []byte) artifacts.Upload {
	return artifacts.Upload{
		Key: key, Digest: artifacts.DigestOf(body), Size: int64(len(body)),
		ContentType: "application/octet-stream", Metadata: map[string]string{"artifactd-probe": "1"},
	}
}

// put stores body under a new key.
func (x *examination) put(ctx context.Context, body []byte) (artifacts.Upload, error) {
	u := x.object(body)
	return u, x.Store.Put(ctx, u, bytes.NewReader(body))
}

// cleanTimeout bounds the removal of what the probes made.
const cleanTimeout = time.Minute

// cleanUp removes every object and upload of this run, also when ctx has ended: those that are
// remembered, and those that only the store knows of.
func (x *examination) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var errs []error
	for _, m := range x.uploads {
		errs = append(errs, x.Store.AbortMultipart(ctx, m))
	}
	keys := x.keys
	for o, err := range x.Store.List(ctx, x.folder) {
		if err != nil {
			errs = append(errs, err)
			break
		}
		keys = append(keys, o.Key)
	}
	deleted, err := x.Store.Delete(ctx, keys)
	errs = append(errs, err)
	for _, d := range deleted {
		if !x.kept(d.Err) { // told by the probe of the object lock
			errs = append(errs, d.Err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up: %w; remove what is below %s yourself", err, x.folder)
	}
	return nil
}
