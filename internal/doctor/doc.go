// Package doctor finds out what an object store really does, by trying.
//
// Stores that speak the same protocol differ in what they check and in what they silently ignore.
// The correctness of artifactd rests on little of it (see [artifacts.Store]); how fast and how
// direct it works rests on more. [Run] tries each point under keys of its own below
// "<prefix>probe/", says what it found and what that means, and removes what it made.
package doctor
