package gc

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// register shows metrics on a registry. Without one they are counted and shown nowhere.
func register(registry prometheus.Registerer, all ...prometheus.Collector) error {
	if registry == nil {
		return nil
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, registry.Register(c))
	}
	return errors.Join(errs...)
}

// metrics of collection.
type metrics struct {
	deletedObjects, deletedBytes *prometheus.CounterVec
	candidates, expired, marked  prometheus.Counter
	failed                       prometheus.Counter
	runs                         *prometheus.CounterVec
	retained                     prometheus.Gauge
	ledgerSize, ledgerAge, last  prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		deletedObjects: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "artifactd_gc_deleted_objects_total",
			Help: "Objects whose first deletion the store confirmed."}, []string{"reason"}),
		deletedBytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "artifactd_gc_deleted_bytes_total",
			Help: "Bytes of these objects."}, []string{"reason"}),
		candidates: prometheus.NewCounter(prometheus.CounterOpts{Name: "artifactd_gc_candidates_total",
			Help: "Generations that were due for a look."}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{Name: "artifactd_gc_expired_leases_total",
			Help: "Leases whose end the collector was the first to record."}),
		marked: prometheus.NewCounter(prometheus.CounterOpts{Name: "artifactd_gc_marked_total",
			Help: "Generations that were found to be garbage."}),
		retained: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_gc_retained_objects",
			Help: "Objects that the store refused to delete in the last run because it retains them (object lock)."}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "artifactd_gc_failed_deletions_total",
			Help: "Deletions that the store refused; they are tried again."}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "artifactd_gc_runs_total",
			Help: "Collection runs by result."}, []string{"result"}),
		ledgerSize: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_gc_ledger_keys",
			Help: "Keys in the deletion ledger at the end of the last run."}),
		ledgerAge: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_gc_ledger_oldest_seconds",
			Help: "Age of the oldest key in the deletion ledger at the end of the last run."}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_gc_last_success_timestamp_seconds",
			Help: "When a collection run last ended without an error."}),
	}
	return m, register(registry, m.deletedObjects, m.deletedBytes, m.candidates, m.expired, m.marked, m.retained, m.failed, m.runs, m.ledgerSize, m.ledgerAge, m.last)
}

func (m *metrics) observe(r *Report, err error) {
	for reason, n := range r.ByReason {
		m.deletedObjects.WithLabelValues(reason).Add(float64(n.Objects))
		m.deletedBytes.WithLabelValues(reason).Add(float64(n.Bytes))
	}
	m.candidates.Add(float64(r.Looked))
	m.expired.Add(float64(r.Expired))
	m.marked.Add(float64(r.Marked))
	m.retained.Set(float64(r.Retained))
	m.failed.Add(float64(r.Failed))
	result := "ok"
	switch {
	case err != nil:
		result = "error"
	case r.Partial():
		result = "partial"
	}
	m.runs.WithLabelValues(result).Inc()
	if err == nil {
		m.last.SetToCurrentTime()
	}
}

func (m *metrics) ledger(size int64, oldestSeconds float64) {
	m.ledgerSize.Set(float64(size))
	m.ledgerAge.Set(oldestSeconds)
}

// reconcileMetrics are those of reconciliation.
type reconcileMetrics struct {
	passes            *prometheus.CounterVec
	moved, aborted    prometheus.Counter
	listed, unknown   prometheus.Gauge
	quarantined, last prometheus.Gauge
}

func newReconcileMetrics(registry prometheus.Registerer) (*reconcileMetrics, error) {
	m := &reconcileMetrics{
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "artifactd_reconcile_passes_total",
			Help: "Passes over the whole bucket by result: ok, share-limit, lost or error."}, []string{"result"}),
		moved: prometheus.NewCounter(prometheus.CounterOpts{Name: "artifactd_reconcile_condemned_objects_total",
			Help: "Unknown objects that went to the deletion ledger."}),
		aborted: prometheus.NewCounter(prometheus.CounterOpts{Name: "artifactd_reconcile_aborted_uploads_total",
			Help: "Unknown multipart uploads that were aborted."}),
		listed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_reconcile_listed_objects",
			Help: "Artifacts' objects in the bucket when this replica last listed it."}),
		unknown: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_reconcile_unknown_objects",
			Help: "Objects and uploads among them that no row knew."}),
		quarantined: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_reconcile_quarantined_objects",
			Help: "Objects that are kept because a history that this database does not know wrote them."}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "artifactd_reconcile_last_success_timestamp_seconds",
			Help: "When a pass of this replica last ended without an error."}),
	}
	return m, register(registry, m.passes, m.moved, m.aborted, m.listed, m.unknown, m.quarantined, m.last)
}

func (m *reconcileMetrics) observe(r *ReconcileReport, err error) {
	result := "ok"
	switch {
	case errors.Is(err, errNotDue), errors.Is(err, ErrPassRunning):
		return
	case errors.Is(err, ErrPassLost):
		result = "lost"
	case errors.Is(err, ErrShareLimit):
		result = "share-limit"
	case err != nil:
		result = "error"
	}
	m.passes.WithLabelValues(result).Inc()
	m.moved.Add(float64(r.Moved))
	m.aborted.Add(float64(r.Aborted))
	if err != nil {
		return
	}
	m.listed.Set(float64(r.Listed))
	m.unknown.Set(float64(r.Unknown + r.UnknownUploads))
	m.quarantined.Set(float64(r.Quarantined))
	m.last.SetToCurrentTime()
}
