package gc

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// reconcileMetrics are those of reconciliation. Without a registry they are shown nowhere.
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
	if registry == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.passes, m.moved, m.aborted, m.listed, m.unknown, m.quarantined, m.last} {
		errs = append(errs, registry.Register(c))
	}
	return m, errors.Join(errs...)
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
