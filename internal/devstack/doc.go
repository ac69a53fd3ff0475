// Package devstack runs what artifactd stands on, a Postgres and an S3 server, as child
// processes: for `artifactd dev`, for tests and for benchmarks. Nothing has to be configured and
// nothing outlives the process that started it.
//
// Postgres is an installed Postgres 15 or newer, started on a Unix socket in a private folder.
// The S3 server is versitygw, linked into this binary; because it changes the working directory
// and allows one instance per process, it runs as this same executable, started again with an
// environment variable that [RunChild] looks for. Every main function and TestMain that starts a
// stack therefore calls RunChild first.
//
// # Ending together
//
// A child ends when its parent does, however the parent ends. On Linux the kernel sends it a
// signal (PR_SET_PDEATHSIG, which follows the thread that started it, so that thread is kept).
// The S3 child also watches its standard input, which the parent holds open. Elsewhere a
// program that cannot watch anything, such as Postgres, is started under a supervisor: again
// this same executable, which ends the program when its own standard input closes.
//
// # Folders
//
// Each server owns one folder and locks it, so two stacks on one folder exclude each other. All
// files in it may be deleted when nothing runs.
package devstack
