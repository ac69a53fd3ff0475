//go:build !linux

package devstack

import "syscall"

// parentDeathSignals: this kernel does not tell a child that its parent died.
const parentDeathSignals = false

func setParentDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// identity is the account a child runs as. The zero value is this process's own.
type identity struct {
	// Switch: become UID and GID.
	Switch   bool
	UID, GID int
}

func (id identity) apply(a *syscall.SysProcAttr) {
	if id.Switch {
		a.Credential = &syscall.Credential{Uid: uint32(id.UID), Gid: uint32(id.GID)}
	}
}

// namespaceIdentity: only Linux has user namespaces.
func namespaceIdentity(int, int) (identity, bool) { return identity{}, false }
