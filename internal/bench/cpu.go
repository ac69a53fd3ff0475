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
// processes of this program: load, service, Postgres and store. Where others use the machine too it
// says more than the rate.
func (s *stack) withCPU(benchmark, who string, run side) side {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		before, known := cpuTime(os.Getpid())
		one, err := run(ctx, d)
		if after, ok := cpuTime(os.Getpid()); err == nil && known && ok && one.operations > 0 {
			s.note(benchmark, "%s: %.2f ms of processors per operation", who, (after-before).Seconds()*1000/float64(one.operations))
		}
		return one, err
	}
}

// spent notes how much time of processors each server took for each of the operations of do. What is
// waited for on a disk is not in it.
func (s *stack) spent(benchmark, who string, service int, do func() (sample, error)) (sample, error) {
	servers := []struct {
		name string
		pid  int
	}{{"service", service}, {"Postgres", s.postgres.Pid()}, {"store", s.s3.Pid()}}
	before := make([]time.Duration, len(servers))
	for i, server := range servers {
		before[i], _ = cpuTime(server.pid)
	}
	one, err := do()
	if err != nil || one.operations == 0 {
		return one, err
	}
	line := who + ": of processors per operation"
	for i, server := range servers {
		after, known := cpuTime(server.pid)
		if !known {
			return one, nil
		}
		line += fmt.Sprintf(", %s %.0f µs", server.name, (after-before[i]).Seconds()*1e6/float64(one.operations))
	}
	s.note(benchmark, "%s", line)
	return one, nil
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
