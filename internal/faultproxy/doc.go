// Package faultproxy is a TCP proxy that does to connections what networks and crashes do: it
// resets them, holds their bytes back, delays them, and loses the answer to what the server has
// already done.
//
// Faults are set for all connections ([Proxy.Set]), or for the one connection whose client sends
// certain bytes ([Proxy.Arm]): with the id of an operation as the pattern, that is the commit of
// this operation and nothing else.
package faultproxy
