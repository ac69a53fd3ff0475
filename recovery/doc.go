// Package recovery keeps a database that lost part of its history from admitting old work.
//
// Fencing depends on one history. A restore, or a failover that lost commits, takes the database
// back: generation numbers are given out again, and an old worker's token matches once more. So the
// history has a name that is kept outside of the database too, its epoch: an object
// epochs/<n>/<uuid> in the bucket. And the bucket holds a witness: how many decisions had been made.
//
// A [Watch] runs in every replica. It compares the database with the bucket and with what it has
// seen itself, and has three answers:
//
//   - The same server was started again and nothing is missing: it is released after a moment.
//   - The server, its timeline or its cluster is another one and nothing is known to be missing (a
//     clean promotion): the next epoch is raised, once, whichever replica is first.
//   - Something is known to be missing, or another database goes on with this bucket: nothing is
//     decided until a person has looked, which is what [Operator] is for.
//
// Until then every deciding function of the database refuses, whoever calls it; reads go on.
//
// Raising kills every lease of the old history. Its steps, and what a crash after each leaves:
//
//	claim    the database remembers who raises, and the uuid of the new epoch. A crash: the claim
//	         runs out, and the next one goes on with the same uuid.
//	issue    the object is put and the bucket listed. A crash: the next one finds it and goes on; until
//	         then no replica of any database confirms an older epoch.
//	witness  the counter that the epoch begins with is put. A crash: likewise.
//	wait     for as long as a confirmation lasts, and the drift of clocks: no replica that still talks
//	         to an old primary can acknowledge a write any more.
//	take     the database stores the epoch, which waits for the decisions under way.
//
// The bucket is also a second witness of what was published. An [Outbox] writes a record of every
// version, of every pointer's settings and of every aborted operation into the bucket, soon after the
// transaction that decided it; a [Rebuild] finds there what a restored database lacks, and brings it
// back as new generations of the epoch that was raised.
package recovery
