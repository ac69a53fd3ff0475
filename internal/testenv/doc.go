// Package testenv gives each test what artifactd runs on, the real thing: a migrated Postgres
// database of its own, and a bucket of its own on a real S3 server.
//
// The servers are started when the first test asks for them and serve the whole test process;
// [Main], called from TestMain, ends them:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// Tests may run in parallel, in any number. What is missing on the machine is a failure that
// says how to install it; nothing is ever skipped.
package testenv
