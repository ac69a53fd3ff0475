// Package bucket holds what every driver of [artifacts.Store] does the same way, whatever SDK it
// is built on: its configuration, the transport, uploads whose bytes prove themselves while they
// pass, reads that count, the meaning of S3's error codes, and the order of a deletion. A driver
// gives it the requests, one a method. It knows the protocol and no SDK.
package bucket
