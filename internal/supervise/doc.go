// Package supervise runs one command so that nothing of it outlives its time: not what it forked,
// not what it turned into daemons, and not when the program that started it is killed.
//
// # How
//
// The command is the child of a supervisor: this executable, started again ([RunChild]), which holds
// one end of a pipe and does nothing but keep watch. The command has a process group of its own. On
// Linux the supervisor is also its subreaper, so that a process that leaves the group and loses its
// parents becomes the supervisor's child and is found there.
//
//   - The starter ends, however: the pipe closes, and the supervisor kills everything.
//   - The starter is frozen: the supervisor kills everything at the time it was last told ([Group.KillBy]).
//   - The supervisor is killed: the kernel kills the command (Linux), and the starter the group and, if
//     it adopts ([Command.Adopt]), what has left it. It goes by a name of its own, so that
//     `killall artifactd` is no case of the last paragraph.
//   - The supervisor is stopped, by the command for example: the starter wakes it with every order, and
//     at the time that it was told kills everything itself.
//   - The command ends: what it left behind is asked to end, and then killed, unless it may stay
//     ([Command.Leave]).
//
// A command that reads the terminal gets it as a shell would give it, if the starter has it; see
// terminal.go.
//
// Out of reach are processes that changed to another account, and, when starter and supervisor are
// killed in the same moment, what the command forked. On other systems than Linux a process that
// leaves the group is out of reach too.
package supervise
