package gc

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of collection. Without a registry they are counted and shown nowhere.
type metrics struct {
	deletedObjects, deletedBytes *prometheus.CounterVec
	failed                       prometheus.Counter
	runs                         *prometheus.CounterVec
	ledgerSize, ledgerAge, last  prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		deletedObjects: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "artifactd_gc_deleted_objects_total",
			Help: "Keys whose first deletion the store confirmed."}, []string{"reason"}),
		deletedBytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "artifactd_gc_deleted_bytes_total",
			Help: "Declared bytes of those keys."}, []string{"reason"}),
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
	if registry == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.deletedObjects, m.deletedBytes, m.failed, m.runs, m.ledgerSize, m.ledgerAge, m.last} {
		errs = append(errs, registry.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) observe(r *Report, err error) {
	for reason, n := range r.ByReason {
		m.deletedObjects.WithLabelValues(reason).Add(float64(n.Objects))
		m.deletedBytes.WithLabelValues(reason).Add(float64(n.Bytes))
	}
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
