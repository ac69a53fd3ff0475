// Package pointer is the commit point of artifactd: it decides who may publish, makes one version
// what a name shows, and remembers what became of every attempt.
//
// # Why the destination decides
//
// A lease is permission in a coordination service, not a hand on the worker's CPU. A worker can
// pause, lose its lease to another, wake up and write. So the row that says what readers see also
// holds the number of the generation that owns it. Acquiring advances that number at once, before
// the new owner has done anything; publishing must match it exactly, under the row's lock, by the
// database's clock. A stale worker's bytes lie under keys of their own, which no row names.
//
// # States
//
// A generation is one ownership of a pointer. Its id is the id of its lease, and its token,
// "<epoch>.<generation>", orders it.
//
//	          publish
//	leased ─────────────▶ published ──▶ displaced ──▶ collecting ──▶ collected
//	  │  release             (current)    by a newer     past its
//	  ├────────▶ released ─┐              publish,       retention,
//	  │  break / retire    │              rollback or    unpinned
//	  ├────────▶ broken   ─┤              retirement
//	  │  end of its time   ├──▶ collecting ──▶ collected
//	  ├────────▶ expired  ─┤     after the resume grace, or
//	  │  a successor       │     once something newer is published
//	  └────────▶ superseded┘
//
// Only "leased" can become "published", and an end once recorded is final. The pointer's row
// names its newest generation (head) and the one it shows (current). A pointer's row is never
// deleted, and its numbers never go back.
//
// # How a decision is made
//
// The functions in package migrations decide; this package carries requests to them, one
// transaction each. Every one of them goes the same way:
//
//  1. lock the pointer rows by name, then the operation, then the generations by id, then
//     artifacts by id: one order everywhere, so that nothing deadlocks;
//  2. in later statements read the database's clock, the epoch, the rows and the manifest;
//  3. decide, change and record the outcome.
//
// No fact from before the locks is used and no lock is awaited after the clock was read: a
// predicate in the locking statement itself is not checked again after every kind of wait, and
// would admit an expired lease.
//
// # What a crash leaves
//
//	acquire    before its commit nothing; after it a lease that its owner does not know of. Asked
//	           again with the same operation id, the same lease; without one, it expires.
//	stage      before its commit nothing; after it rows of artifacts without bytes. Staging again
//	           gives the same artifacts; else they go with their generation.
//	upload     an object that no version names, under a key that is in the table: collected with
//	           its generation.
//	complete   before its commit a stored object that is not marked so: completing again proves it
//	           again.
//	seal       before its commit an unsealed manifest: publishing seals again.
//	publish    before its commit nothing, and no outcome: settling writes the tombstone that keeps
//	           it from happening later. After it the version is shown and the outcome recorded;
//	           whoever asks by operation id gets it.
//	settle     before its commit nothing: asking again gives the one final answer.
//	collect    see package gc.
//
// # What callers are told
//
// An outcome is told only when it is as durable as the server makes anything: repeating a
// recorded one commits a write of its own first. When the answer to a commit is lost, the caller
// gets [*OutcomeUnknownError] and [Catalogue.Settle] gives the truth; it is never guessed.
package pointer
