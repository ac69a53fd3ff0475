// Package daemon is the wiring of the service: one [Config], and [Run], which makes the database
// pool, the store, the API and the collector from it and ends them in order. It is the only place
// that knows which drivers there are.
package daemon
