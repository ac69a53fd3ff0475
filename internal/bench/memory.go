package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// memoryGoal is how much memory the client, and the service, may have while a large file is moved.
const memoryGoal = 128 * mebibyte

// withMemory notes, for every round of a side, the peak of resident memory (VmHWM of Linux) of the
// process that is the client in it, which is this one, and of the service's.
func (s *stack) withMemory(benchmark string, run side) side {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		debug.FreeOSMemory() // what other benchmarks had here
		processes := []struct {
			name string
			pid  int
		}{{"client", os.Getpid()}, {"service", s.service.PID}}
		for _, p := range processes {
			// 5 means: forget the peak.
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0); errors.Is(err, fs.ErrNotExist) {
				s.note(benchmark, "the peak of memory is not known on this system")
				return run(ctx, d)
			} else if err != nil {
				return sample{}, fmt.Errorf("forget the peak of the %s's memory: %w", p.name, err)
			}
		}
		one, err := run(ctx, d)
		if err != nil {
			return one, err
		}
		line := "peak of memory"
		for _, p := range processes {
			peak, err := peakMemory(p.pid)
			if err != nil {
				return one, err
			}
			verdict := "met"
			if peak >= memoryGoal {
				verdict = "missed"
			}
			line += fmt.Sprintf(", %s %d MiB [< %d] %s", p.name, peak/mebibyte, memoryGoal/mebibyte, verdict)
		}
		s.note(benchmark, "%s", line)
		return one, nil
	}
}

// peakMemory is the largest resident memory that a process had, in bytes.
func peakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kibibytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kibibytes << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmHWM", pid)
}
