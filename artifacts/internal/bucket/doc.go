// Package bucket holds what every driver of [artifacts.Store] does the same way, whatever SDK it
// is built on: its configuration, the transport, bodies that prove themselves while they pass,
// readers that count, the meaning of S3's error codes, and the order of a deletion. It knows the
// protocol and no SDK.
package bucket
