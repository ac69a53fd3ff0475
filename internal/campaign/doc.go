// Command campaign attacks the fence, collection and recovery for as long as it is told to, and
// checks every history.
//
// Many workers and readers drive several pointers through replicas of the real service, each a
// process of its own, each connected to a real Postgres through a proxy. All the while connections
// are reset, black-holed and delayed, answers to commits are lost, backends are terminated, rows
// are held locked, services are killed and Postgres crashes.
//
// Time is cut into windows. At the end of one everybody pauses, the faults are lifted, every
// connection of the services is ended, and the pointers' rows are read: nothing of the window can
// take effect later. The window's history is then checked, pointer by pointer, for linearizability
// against a sequential model of one pointer (porcupine), with that read as its last operation and
// the first state of the next window. What a caller was left not to know is settled at once; what
// cannot be settled (a renewal, say) may have taken effect at any time up to the window's end, or
// never. Beyond the windows, whole-history invariants are compared with the final tables.
//
// Beside that, collectors and reconcilers of all services work all the time on shelves: pointers
// with little retention whose versions hold real files, which are uploaded (through the service or
// straight to the store, some of them too late), adopted, taken back to, pinned and abandoned, and
// read back byte by byte. Whatever could not be read is compared with what the database says of it:
// only a version whose retention is over may be gone. At the end, once graces are over, the bucket
// must hold exactly the objects that the catalogue knows, and what was not to be touched.
//
// The second attack takes the database back again and again while workers go on: a lagging standby is
// promoted, a base backup is restored to a moment, an old copy of the folder is started. The services
// have to notice, and the campaign is the operator. No lease of a lost history may do anything, no
// token may be given out twice over all histories, and every publish that was acknowledged before the
// oldest record that waited in the outbox is there, or listed as lost, and comes back. Linearizability
// is not looked at meanwhile: there is more than one history.
//
// The seed fixes what the generators decide. What the machine's schedule makes of it differs from
// run to run, which is why the report carries the violating history itself.
package main
