// Package identity finds the caller behind the identity token of a workload: a CI job or a Kubernetes
// service account, which its own platform vouches for.
//
// A [Config] names the issuers that are trusted. Each has an audience, which says that a token was
// made for this service and not for another one, and rules: which claims get which scopes on which
// pointers. The first rule that matches decides, and a token that none matches is refused.
//
// An issuer's keys are fetched when they are needed first, and again when they are ten minutes old
// or a token names an unknown one, but not more often than every ten seconds: what strangers send
// must not become a stream of requests to somebody else. While the issuer cannot be reached the keys
// that are there stay good for a day.
package identity
