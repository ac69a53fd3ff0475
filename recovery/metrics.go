package recovery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/pointer"
)

type metrics struct {
	epoch, counter, behind, changed, held prometheus.Gauge
	confirmed                             prometheus.GaugeFunc
	raises, releases, faults              prometheus.Counter
}

func newMetrics(r prometheus.Registerer, confirmedFor func() time.Duration) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "artifactd", Subsystem: "history", Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "artifactd", Subsystem: "history", Name: name, Help: help})
	}
	m := &metrics{
		epoch:   gauge("epoch", "The epoch that the database is in."),
		counter: gauge("decisions", "Decisions that the database knows of."),
		behind:  gauge("lost_decisions", "Decisions that are known to have been made and that the database does not know of."),
		changed: gauge("changed", "1 while the database's history is in doubt and no write is admitted."),
		held:    gauge("collection_held", "1 while collection waits for an operator after the history changed."),
		confirmed: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "artifactd", Subsystem: "history", Name: "confirmed_seconds",
			Help: "For how long writes may still be acknowledged on the bucket's last confirmation of the epoch.",
		}, func() float64 { return confirmedFor().Seconds() }),
		raises:   counter("raises_total", "Epochs that this replica has raised."),
		releases: counter("releases_total", "Restarts of the database server after which this replica let writes go on."),
		faults:   counter("look_failures_total", "Comparisons of the database with the bucket that failed."),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.epoch, m.counter, m.behind, m.changed, m.held, m.confirmed, m.raises, m.releases, m.faults} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(h pointer.History, j judgement) {
	flag := map[bool]float64{true: 1}
	m.epoch.Set(float64(h.Epoch.Number))
	m.counter.Set(float64(h.Counter))
	m.behind.Set(float64(max(0, max(h.KnownAhead, j.ahead)-h.Counter)))
	m.changed.Set(flag[j.verdict != quiet && j.verdict != unarmed])
	m.held.Set(flag[h.CollectionHeldAt != nil])
}
