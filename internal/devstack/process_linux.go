package devstack

import "syscall"

// parentDeathSignals: the kernel tells a child that its parent died.
const parentDeathSignals = true

func setParentDeathSignal(a *syscall.SysProcAttr, s syscall.Signal) { a.Pdeathsig = s }

// identity is the account a child runs as. The zero value is this process's own.
type identity struct {
	// Namespace: run in a user namespace in which UID and GID are this process's own account,
	// under another number. The files it makes belong to this process's account.
	Namespace bool
	// Switch: become UID and GID for real.
	Switch   bool
	UID, GID int
}

func (id identity) apply(a *syscall.SysProcAttr) {
	switch {
	case id.Namespace:
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: id.UID, HostID: syscall.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: id.GID, HostID: syscall.Getegid(), Size: 1}}
	case id.Switch:
		a.Credential = &syscall.Credential{Uid: uint32(id.UID), Gid: uint32(id.GID)}
	}
}

// namespaceIdentity is the account in a user namespace that stands for this process's own.
func namespaceIdentity(uid, gid int) (identity, bool) {
	return identity{Namespace: true, UID: uid, GID: gid}, true
}
