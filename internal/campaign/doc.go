// Command campaign attacks the fence for as long as it is told to and checks every history.
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
// The seed fixes what the generators decide. What the machine's schedule makes of it differs from
// run to run, which is why the report carries the violating history itself.
package main
