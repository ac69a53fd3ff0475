// Package s3store is the [artifacts.Store] on the AWS SDK for Go v2. It works with Amazon S3 and
// with the stores that speak its protocol.
//
// # What it does not trust
//
// Bytes are hashed while they pass, and the last of them are held back until the digest and the
// size are known to be right: a wrong upload is an incomplete request to the
// store, whatever the store checks. The SHA-256 goes along as a signed header all the same, so
// that a store which checks it proves the bytes again on its side.
//
// Parts of a large object are treated likewise. The checksum that the store makes of the parts'
// checksums is not passed on: it proves nothing about the whole.
//
// A listing that does not say plainly that it is complete is an error. A deletion counts when
// the store names the key as deleted. A read counts when every byte of the range has arrived.
//
// # Retries
//
// The SDK retries what is safe to repeat, six times at most. A body that cannot be rewound is
// sent once. When the fate of a PUT is unclear, because the answer was lost or because a second
// attempt met the object of the first, the store is asked what it holds under the key, which no
// other upload ever had.
package s3store
