package recovery

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

var (
	installationA, installationB = uuid.New(), uuid.New()
	one, two, other              = pointer.EpochID{Number: 1, UUID: uuid.New()}, pointer.EpochID{Number: 2, UUID: uuid.New()}, pointer.EpochID{Number: 2, UUID: uuid.New()}
)

// healthy is an installation in which everything agrees, after 100 decisions.
func healthy() (view, *witness, pointer.History, memory) {
	return view{epochs: []pointer.EpochID{one}, newestSeen: 1},
		&witness{Installation: installationA, Epoch: 1, EpochUUID: one.UUID, Counter: 100},
		pointer.History{Installation: installationA, Epoch: one, Armed: true, Counter: 100, SameSystem: true, SameTimeline: true, SameServer: true},
		memory{epoch: one, counter: 100}
}

func TestJudge(t *testing.T) {
	at := time.Now()
	for name, test := range map[string]struct {
		spoil func(*view, **witness, *pointer.History, *memory)
		want  verdict
		says  string
		ahead int64
	}{
		"all agree":                {func(*view, **witness, *pointer.History, *memory) {}, quiet, "", 0},
		"the database went on":     {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.Counter = 150 }, quiet, "", 0},
		"another start":            {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.SameServer = false }, restarted, "started again", 0},
		"another timeline":         {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.SameTimeline = false }, changed, "promoted or restored", 0},
		"another cluster":          {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.SameSystem = false }, changed, "promoted or restored", 0},
		"behind the witness":       {func(_ *view, _ **witness, h *pointer.History, m *memory) { h.Counter, m.counter = 99, 0 }, lost, "at least 1 are lost", 100},
		"behind what was seen":     {func(_ *view, _ **witness, h *pointer.History, m *memory) { m.counter = 130 }, lost, "at least 30 are lost", 130},
		"another start, behind":    {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.SameServer, h.Counter = false, 7 }, lost, "at least 93", 100},
		"another timeline, behind": {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.SameTimeline, h.Counter = false, 7 }, lost, "at least 93", 100},
		"a sign was noted":         {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.ChangedAt, h.ChangedWhy = &at, "because" }, changed, "because", 0},
		"a loss was noted":         {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.ChangedAt, h.LossKnown = &at, true }, lost, "", 0},
		"a loss was reported":      {func(_ *view, _ **witness, h *pointer.History, _ *memory) { h.ChangedAt, h.KnownAhead = &at, 101 }, lost, "", 101},
		"the bucket is ahead":      {func(v *view, _ **witness, _ *pointer.History, _ *memory) { v.epochs = append(v.epochs, two) }, lost, "another database goes on", 0},
		"the bucket is ahead, from here": {func(v *view, _ **witness, h *pointer.History, _ *memory) {
			v.epochs, h.Pending = append(v.epochs, two), two.UUID
		}, unsure, "is being raised", 0},
		"the same, after a sign": {func(v *view, _ **witness, h *pointer.History, _ *memory) {
			v.epochs, h.Pending, h.ChangedAt = append(v.epochs, two), two.UUID, &at
		}, changed, "", 0},
		"two issued the next one": {func(v *view, _ **witness, h *pointer.History, _ *memory) {
			v.epochs, h.Pending = append(v.epochs, other, two), two.UUID
		}, lost, "another database", 0},
		"two issued this one": {func(v *view, _ **witness, h *pointer.History, m *memory) {
			v.epochs, h.Epoch, m.epoch = append(v.epochs, other, two), two, two
		}, lost, "another database has issued", 0},
		"another uuid": {func(v *view, _ **witness, h *pointer.History, m *memory) {
			v.epochs, h.Epoch, m.epoch = append(v.epochs, other), two, two
		}, lost, "another database has issued", 0},
		"the database's epoch went back": {func(_ *view, _ **witness, _ *pointer.History, m *memory) { m.epoch = two }, lost, "has seen the database in epoch 2", 0},
		"the bucket's epoch went back":   {func(_ *view, _ **witness, h *pointer.History, m *memory) { h.Epoch, m.epoch = two, two }, unsure, "right bucket", 0},
		"no epochs":                      {func(v *view, _ **witness, _ *pointer.History, _ *memory) { v.epochs = nil }, unsure, "holds no epoch", 0},
		"no witness":                     {func(_ *view, w **witness, _ *pointer.History, _ *memory) { *w = nil }, unsure, "holds no witness", 0},
		"a witness from the future":      {func(v *view, _ **witness, _ *pointer.History, _ *memory) { v.newestSeen = 9 }, unsure, "never issued", 0},
		"a witness of another history":   {func(_ *view, w **witness, _ *pointer.History, _ *memory) { (*w).EpochUUID = other.UUID }, lost, "witness is of epoch", 0},
		"a witness of another's":         {func(_ *view, w **witness, _ *pointer.History, _ *memory) { (*w).Installation = installationB }, unsure, "its own bucket", 0},
		"something unreadable":           {func(v *view, _ **witness, _ *pointer.History, _ *memory) { v.fault = errors.New("odd") }, unsure, "odd", 0},
		"a first start": {func(v *view, w **witness, h *pointer.History, m *memory) {
			*v, *w, h.Armed, *m = view{}, nil, false, memory{}
		}, unarmed, "", 0},
		"a first start that was broken off": {func(v *view, w **witness, h *pointer.History, m *memory) {
			*w, h.Armed, *m, h.Pending = nil, false, memory{}, one.UUID
		}, unarmed, "", 0},
		"from before the guard": {func(v *view, w **witness, h *pointer.History, m *memory) {
			h.Armed, *m, h.Epoch.UUID = false, memory{}, uuid.Nil
		}, lost, "never took part", 0},
	} {
		t.Run(name, func(t *testing.T) {
			v, w, h, m := healthy()
			test.spoil(&v, &w, &h, &m)
			j := judge(v, w, h, m)
			if j.verdict != test.want || !strings.Contains(j.why, test.says) || j.ahead != test.ahead {
				t.Errorf("judged %s (%s), %d ahead; want %s (%s), %d", j.verdict, j.why, j.ahead, test.want, test.says, test.ahead)
			}
		})
	}
}
