package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/artifactd/artifactd/client"
)

// silent says what a command waits for that has had no good answer for some seconds.
func (p *Program) silent(s client.Silence) {
	p.note("artifactd: %s", silence(s))
}

func silence(s client.Silence) string {
	left := "until it answers"
	if s.Left > 0 {
		left = "for up to " + period(s.Left) + " more"
	}
	var problem *client.Problem
	switch {
	case errors.As(s.Err, &problem) && problem.Detail != "":
		return fmt.Sprintf("%s cannot do this now: %s; trying again %s", s.Host, oneLine(strings.TrimSuffix(problem.Detail, ".")), left)
	case s.Err != nil:
		return fmt.Sprintf("%s; trying again %s", oneLine(s.Err.Error()), left)
	case !s.Connected:
		return fmt.Sprintf("no connection to %s yet; trying %s", s.Host, left)
	}
	return fmt.Sprintf("no answer from %s yet; waiting %s", s.Host, left)
}
