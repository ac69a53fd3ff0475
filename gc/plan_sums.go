package gc

import (
	"cmp"
	"maps"
	"slices"
)

// planKey is one line of a plan's summary.
type planKey struct {
	goes   bool
	reason string
}

// planSums adds up a plan while it is made.
type planSums map[planKey]PlanCount

func (s planSums) add(goes bool, n PlanCount) {
	k := planKey{goes, n.Reason}
	sum := s[k]
	s[k] = PlanCount{n.Reason, sum.Generations + n.Generations, sum.Objects + n.Objects, sum.Bytes + n.Bytes}
}

// sorted gives what goes, or what stays, by reason.
func (s planSums) sorted(goes bool) []PlanCount {
	list := []PlanCount{}
	for _, k := range slices.SortedFunc(maps.Keys(s), func(a, b planKey) int { return cmp.Compare(a.reason, b.reason) }) {
		if k.goes == goes {
			list = append(list, s[k])
		}
	}
	return list
}
