package main

import "testing"

// TestMutantsAreCurrent: every text that a mutant breaks stands in the tree as it is now. Whether
// the mutants are caught takes minutes, and is what `make mutants` is for.
func TestMutantsAreCurrent(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range mutants() {
		if names[m.name] {
			t.Errorf("two mutants are called %q", m.name)
		}
		names[m.name] = true
		if source, err := m.broken(root); err != nil || source == "" || m.new == m.old {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
