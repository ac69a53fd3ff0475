package bucket

import (
	"fmt"
	"strings"
)

// Follows checks that a key may come after the key last in the listing of a prefix.
func Follows(key, last, prefix string) error {
	if !strings.HasPrefix(key, prefix) {
		return fmt.Errorf("the store sent the key %q, which was not asked for", key)
	}
	if key <= last {
		return fmt.Errorf("the store sent the key %q after %q: it does not list in order", key, last)
	}
	return nil
}
