package main

import "slices"

// mutant is one breaking of the protocol, and the tests that must notice it.
type mutant struct {
	name string
	file string // relative to the module's root
	old  string // stands there exactly once
	new  string
	pkg  string
	run  string // -run expression of the tests of which at least one must fail
}

const (
	leases  = "migrations/00002_leases.sql"
	publish = "migrations/00003_publish.sql"
	collect = "migrations/00004_collect.sql"
	taking  = "migrations/00014_collect.sql"

	reconcile = "migrations/00006_reconcile.sql"
	history   = "migrations/00008_history.sql"

	quarantine = "migrations/00013_quarantine.sql"
	many       = "migrations/00015_many.sql"
	staging    = "migrations/00018_staging.sql"
)

// mutants are all of them. A guard without a mutant is a guard that nobody knows to be tested.
func mutants() []mutant {
	return slices.Concat(fenceMutants, stagingMutants, collectMutants, historyMutants, recordMutants, archiveMutants, accessMutants)
}
