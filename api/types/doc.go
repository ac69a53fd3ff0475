// Package types holds the request and response types of the HTTP API and a raw client, both
// generated from openapi.yaml. It imports no server package, so that every client can use it.
// Programs that hold leases and move files want package client, which is built on this one.
package types

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen -config oapi-codegen.yaml ../openapi.yaml
