package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// clockTick is the unit in which Linux tells the time of processors.
const clockTick = 10 * time.Millisecond

// withCPU notes, for every round of a side, how much time of processors one operation took in all
// processes of this program. Where others use the machine too it says more than the rate.
func (s *stack) withCPU(benchmark, who string, run side) side {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		u := s.usageOf(s.service.PID)
		u.names, u.pids, u.used = append(u.names, "all with the load"), append(u.pids, os.Getpid()), append(u.used, 0)
		one, err := u.of(func() (sample, error) { return run(ctx, d) })
		if err == nil && one.operations > 0 && !u.unknown {
			s.note(benchmark, "%s", u.line(who))
		}
		return one, err
	}
}

// usage is how much time of processors the servers took for some operations.
type usage struct {
	names      []string
	pids       []int
	used       []time.Duration
	operations int64
	unknown    bool // the system does not tell
}

func (s *stack) usageOf(service int) *usage {
	return &usage{names: []string{"service", "Postgres", "store"}, pids: []int{service, s.postgres.Pid(), s.s3.Pid()}, used: make([]time.Duration, 3)}
}

// of adds what the servers take for the operations of do.
func (u *usage) of(do func() (sample, error)) (sample, error) {
	read := func(sign time.Duration) {
		for i, pid := range u.pids {
			t, known := cpuTime(pid)
			u.used[i] += sign * t
			u.unknown = u.unknown || !known
		}
	}
	read(-1)
	one, err := do()
	read(1)
	u.operations += one.operations
	return one, err
}

func (u *usage) line(who string) string {
	line := who + ": of processors per operation"
	for i, name := range u.names {
		line += fmt.Sprintf(", %s %.0f µs", name, u.used[i].Seconds()*1e6/float64(max(u.operations, 1)))
	}
	return line
}

// spent notes how much time of processors each server took for each of the operations of do. What is
// waited for on a disk is not in it.
func (s *stack) spent(benchmark, who string, service int, do func() (sample, error)) (sample, error) {
	u := s.usageOf(service)
	one, err := u.of(do)
	if err == nil && one.operations > 0 && !u.unknown {
		s.note(benchmark, "%s", u.line(who))
	}
	return one, err
}

// spentOverall is spent for a side of many short turns: one line tells of all of them.
func (s *stack) spentOverall(benchmark, who string, service int, run side) side {
	u := s.usageOf(service)
	s.note(benchmark, "%s", u.line(who))
	n := len(s.notes[benchmark]) - 1
	return func(ctx context.Context, d time.Duration) (sample, error) {
		one, err := u.of(func() (sample, error) { return run(ctx, d) })
		if !u.unknown {
			s.notes[benchmark][n] = u.line(who)
		}
		return one, err
	}
}

// cpuTime is the time that a process and its descendants had so far, those that have ended included.
// It is false where the system does not tell.
func cpuTime(root int) (time.Duration, bool) {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(names) == 0 {
		return 0, false
	}
	ticks, children := map[int]int64{}, map[int][]int{}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		pid, parent, used, err := parseStat(line)
		if err != nil {
			return 0, false
		}
		ticks[pid] = used
		children[parent] = append(children[parent], pid)
	}
	var sum int64
	for line := []int{root}; len(line) > 0; line = line[1:] {
		sum += ticks[line[0]]
		line = append(line, children[line[0]]...)
	}
	return time.Duration(sum) * clockTick, true
}

// parseStat reads a line of /proc/PID/stat: its own, its parent's number, and the ticks that it and the
// children it has waited for had as user and system.
func parseStat(line []byte) (pid, parent int, ticks int64, err error) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')') // the name may have anything in it
	if open < 0 || end < open {
		return 0, 0, 0, fmt.Errorf("no line of a process: %q", line)
	}
	rest := bytes.Fields(line[end+1:])
	if len(rest) < 15 {
		return 0, 0, 0, fmt.Errorf("no line of a process: %q", line)
	}
	if pid, err = strconv.Atoi(string(bytes.TrimSpace(line[:open]))); err != nil {
		return 0, 0, 0, err
	}
	if parent, err = strconv.Atoi(string(rest[1])); err != nil {
		return 0, 0, 0, err
	}
	for _, field := range rest[11:15] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, 0, 0, err
		}
		ticks += n
	}
	return pid, parent, ticks, nil
}
