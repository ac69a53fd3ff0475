package recovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

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
