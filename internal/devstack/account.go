package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// unprivilegedAccounts are tried in this order as the one Postgres believes to be. It must have
// an entry in the account database: initdb looks its own name up.
var unprivilegedAccounts = []string{"postgres", "_postgres", "nobody"}

// postgresIdentity decides what Postgres runs as. An ordinary user runs it as itself. Postgres
// refuses root, so root gives it a user namespace in which root's files belong to an ordinary
// account; where the kernel refuses that, the account of the Postgres package, which must then
// be able to reach folder.
func postgresIdentity(ctx context.Context, in installation, folder string) (identity, error) {
	if os.Geteuid() != 0 {
		return identity{}, nil
	}
	id, refused := inNamespace(ctx, in)
	if refused == nil {
		return id, nil
	}
	return asPackageAccount(ctx, folder, refused)
}

var errNoNamespaces = errors.New("it has none")

// inNamespace is the identity of an ordinary account in a user namespace, if the kernel allows.
func inNamespace(ctx context.Context, in installation) (identity, error) {
	refused := errNoNamespaces
	for _, name := range unprivilegedAccounts {
		uid, gid, err := account(name)
		if err != nil {
			continue
		}
		if id, ok := namespaceIdentity(uid, gid); ok {
			if refused = tryIdentity(ctx, id, filepath.Join(in.bin, "postgres"), "--version"); refused == nil {
				return id, nil
			}
		}
	}
	return identity{}, refused
}

// asPackageAccount is the account that the Postgres package made, given the folder, if it can
// reach it. refused is why there is no user namespace.
func asPackageAccount(ctx context.Context, folder string, refused error) (identity, error) {
	for _, name := range unprivilegedAccounts[:2] {
		uid, gid, err := account(name)
		if err != nil {
			continue
		}
		id := identity{Switch: true, UID: uid, GID: gid}
		err = giveFolder(folder, uid, gid)
		if err == nil {
			err = tryIdentity(ctx, id, "/bin/sh", "-c", `cd "$1" && test -w .`, "sh", folder)
		}
		if err == nil {
			return id, nil
		}
		return identity{}, fmt.Errorf("Postgres does not run as root, this kernel refuses user namespaces (%w), and the "+
			"account %s cannot use %s (%w): run as an ordinary user, or choose a folder whose parents others may enter",
			refused, name, folder, err)
	}
	return identity{}, fmt.Errorf("Postgres does not run as root, this kernel refuses user namespaces (%w), and there is no "+
		"account named postgres to run it as: run as an ordinary user", refused)
}

func account(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	if uid, err = strconv.Atoi(u.Uid); err != nil {
		return 0, 0, err
	}
	if gid, err = strconv.Atoi(u.Gid); err != nil {
		return 0, 0, err
	}
	return uid, gid, nil
}

// tryIdentity runs a harmless command as the identity.
func tryIdentity(ctx context.Context, id identity, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	id.apply(cmd.SysProcAttr)
	return cmd.Run()
}

// giveFolder makes everything under folder belong to the account.
func giveFolder(folder string, uid, gid int) error {
	return filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
}
