// Command bench measures artifactd against what it stands on, side by side in one run, and prints
// the ratios:
//
//   - resolve: reading the current version, against a bare echo handler that returns the same bytes;
//   - commit: acquire, stage and publish over HTTP (three requests, no bytes to move: the one file is
//     adopted from the current version), against the two bare UPDATEs in pgbench on the same Postgres;
//   - records: the same, until the bucket has a record of each version, against the publishes alone;
//   - checks: the same with what guards the database's history (each decision compares and counts, and
//     the bucket is looked at), against an installation without. Turns are short and many;
//   - upload: a publish of 64 KiB from end to end (acquire, stage, PUT to the store, complete,
//     publish), against raw PUTs to the same store;
//   - large: one large file published by the command's own client, hashing and proof included, against
//     the SDK's own upload of the same file;
//   - read: a large file read through the service, against the GET of the same object;
//   - many: many small files published by the command's client, against the same number of the SDK's PUTs;
//   - flip: the one request that makes a version of many files current, against that of one file;
//   - token: a resolve with an access token, against one of a public pointer without;
//   - hostile: how long healthy callers wait while others hold slow connections and guess access tokens,
//     against how long they wait alone (1/p99 of both, so that larger is better). The attackers are a
//     process of their own, and stand back for the others on the same processors (nice).
//
// Numbers of one machine mean little on another; a ratio of two things measured the same way means
// more. So both sides have the same layout (a server in a process of its own, the load in this
// one), take turns round by round, and start every other round, so that neither always has the
// warmer machine. A benchmark's ratio is the median of its rounds' ratios.
//
// Deleting many files can make a file system slow at making new ones for a minute (ext4 without a
// journal does not use an inode again at once): runs right after each other favour neither side,
// but their absolute numbers are lower.
//
// Everything is started here and removed at the end: Postgres with fsync on and its own settings
// but for checkpoints, which are put off so that they do not fall into one side's rounds; an S3
// server; and the service, wired as `artifactd serve` wires it, its collector included. Nothing
// listens beyond the loopback address.
package main
