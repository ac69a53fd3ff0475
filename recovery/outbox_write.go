package recovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// write writes the records of all rows; one error a row.
func (o *Outbox) write(ctx context.Context, rows []pointer.OutboxRow) []error {
	faults := make([]error, len(rows))
	var g errgroup.Group
	g.SetLimit(o.opts.Parallel)
	var small []int // versions whose files are read together
	files := 0
	flush := func() {
		o.writeSmall(ctx, &g, rows, faults, small)
		small, files = nil, 0
	}
	for i := range rows {
		row := &rows[i]
		switch {
		case row.Kind != pointer.RecordVersion:
			g.Go(func() error { faults[i] = o.writeDocument(ctx, row); return nil })
		case row.Gone:
		case row.FileCount > outboxFiles:
			g.Go(func() error {
				faults[i] = o.writeVersion(ctx, row, o.catalogue.ManifestFiles(ctx, []uuid.UUID{row.ManifestID}))
				return nil
			})
		default:
			if files+row.FileCount > outboxFiles {
				flush()
			}
			small, files = append(small, i), files+row.FileCount
		}
	}
	flush()
	_ = g.Wait() // nothing in it fails
	return faults
}

// writeSmall reads the files of some versions together and has their records written.
func (o *Outbox) writeSmall(ctx context.Context, g *errgroup.Group, rows []pointer.OutboxRow, faults []error, which []int) {
	manifests := make([]uuid.UUID, len(which))
	for n, i := range which {
		manifests[n] = rows[i].ManifestID
	}
	files := make(map[uuid.UUID][]pointer.ManifestFile, len(which))
	for f, err := range o.catalogue.ManifestFiles(ctx, manifests) {
		if err != nil {
			for _, i := range which {
				faults[i] = err
			}
			return
		}
		files[f.ManifestID] = append(files[f.ManifestID], f)
	}
	for _, i := range which {
		row := &rows[i]
		g.Go(func() error {
			faults[i] = o.writeVersion(ctx, row, each(files[row.ManifestID]))
			return nil
		})
	}
}

// each yields what was read before.
func each(files []pointer.ManifestFile) iter.Seq2[pointer.ManifestFile, error] {
	return func(yield func(pointer.ManifestFile, error) bool) {
		for _, f := range files {
			if !yield(f, nil) {
				return
			}
		}
	}
}

func (o *Outbox) writeVersion(ctx context.Context, row *pointer.OutboxRow, files iter.Seq2[pointer.ManifestFile, error]) (err error) {
	s := newSpool()
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := writeVersion(s, row, files); err != nil {
		return err
	}
	body, err := s.reader()
	if err != nil {
		return err
	}
	key := recordKey{row.Pointer, row.Token, row.ID}.in(o.layout, versionsFolder)
	return o.put(ctx, artifacts.Upload{Key: key, Digest: s.digest(), Size: s.size, ContentType: "application/gzip"}, body)
}

// put stores a record, whose key says which one it is: whoever was faster wrote the same.
func (o *Outbox) put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // the claim is over: whoever has it now may have finished, and more
	}
	put, done := context.WithTimeout(ctx, outboxPut+time.Duration(u.Size/outboxPutRate)*time.Second)
	defer done()
	err := o.store.Put(put, u, body)
	if errors.Is(err, artifacts.ErrExists) {
		return nil
	}
	return err
}

// writeDocument writes the record of a pointer's settings or of an aborted operation.
func (o *Outbox) writeDocument(ctx context.Context, row *pointer.OutboxRow) error {
	var key string
	var document any
	if row.Kind == pointer.RecordAborted {
		key = operationKey(o.layout, row.OperationID, row.Pointer)
		document = abortedRecord{abortedFormat, row.InstallationID, row.OperationID, row.Pointer}
	} else {
		key = recordKey{row.Pointer, pointer.Token{Epoch: row.Token.Epoch, Generation: row.Revision}, row.RevisionID}.in(o.layout, pointersFolder)
		document = pointerRecord{pointerFormat, row.InstallationID, row.Pointer, row.Token.Epoch, row.Revision, row.RevisionID, row.Settings}
	}
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	u := artifacts.Upload{Key: key, Digest: artifacts.DigestOf(text), Size: int64(len(text)), ContentType: "application/json"}
	if err := o.put(ctx, u, bytes.NewReader(text)); err != nil || row.Kind == pointer.RecordAborted {
		return err
	}
	return o.catalogue.FinishPointerRecord(ctx, *row)
}

type outboxMetrics struct {
	rows, oldest prometheus.Gauge
	written      *prometheus.CounterVec
	failed       prometheus.Counter
}

func newOutboxMetrics(r prometheus.Registerer) (*outboxMetrics, error) {
	m := &outboxMetrics{
		rows: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_outbox_records",
			Help: "Records of what was published that the bucket does not have yet."}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_outbox_oldest_seconds",
			Help: "How long the oldest of those has waited: what a lost database may lose for good."}),
		written: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "artifactd_outbox_written_total",
			Help: "Records written into the bucket."}, []string{"kind"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "artifactd_outbox_failed_total",
			Help: "Records that could not be written; they are tried again."}),
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.rows), r.Register(m.oldest), r.Register(m.written), r.Register(m.failed))
}
