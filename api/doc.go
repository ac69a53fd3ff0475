// Package api is the HTTP API: the document, the handlers, the problem table and authentication.
//
// openapi.yaml is the source. The echo server interface, the types and the raw client are
// generated from it, every JSON request is checked against it before a handler runs, and
// x-access in it says what a caller needs; an operation without it does not start. Handlers
// translate: they read a request, call package pointer, which decides, and write the answer or
// return the error. One table turns errors into problem documents.
package api

//go:generate go tool -modfile=../tools/go.mod oapi-codegen -config oapi-codegen.yaml openapi.yaml
