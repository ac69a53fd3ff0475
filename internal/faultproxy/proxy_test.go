package faultproxy_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/artifactd/artifactd/internal/faultproxy"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *faultproxy.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exchange sends a text and reads as much back, for at most d.
func exchange(t *testing.T, c net.Conn, text string, d time.Duration) error {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	return receive(t, c, text, d)
}

func receive(t *testing.T, c net.Conn, text string, d time.Duration) error {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	n, err := io.ReadFull(c, got)
	if err == nil && string(got) != text {
		t.Errorf("got %q, want %q", got[:n], text)
	}
	return err
}

// TestArm: each of several trips hits the one connection that sends its bytes, cut into two or
// not, and no other.
func TestArm(t *testing.T) {
	p, err := faultproxy.New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	a, b, other := dial(t, p), dial(t, p), dial(t, p)
	held := p.Arm([]byte("first"), faultproxy.Fault{HoldToServer: true})
	lost := p.Arm([]byte("second"), faultproxy.Fault{LoseAnswer: true})
	if err := exchange(t, a, "fir", time.Minute); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if err := exchange(t, a, "st", 50*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("the held connection answered with %v", err)
	}
	if err := exchange(t, b, "second", time.Minute); err == nil {
		t.Error("the lost answer arrived")
	}
	if err := exchange(t, other, "first and second", time.Minute); err != nil {
		t.Errorf("trips that have happened happen again: %v", err)
	}
	<-held.Tripped()
	<-lost.Tripped()
	held.Lift()
	if err := receive(t, a, "st", time.Minute); err != nil {
		t.Errorf("what was held does not arrive: %v", err)
	}
}

// TestBreak: breaking a trip resets the connection that it hit; lifting one that has not happened
// takes it away.
func TestBreak(t *testing.T) {
	p, err := faultproxy.New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	a, other := dial(t, p), dial(t, p)
	hit := p.Arm([]byte("now"), faultproxy.Fault{HoldToClient: true})
	never := p.Arm([]byte("never"), faultproxy.Fault{Reset: true})
	if _, err := a.Write([]byte("now")); err != nil {
		t.Fatal(err)
	}
	<-hit.Tripped()
	hit.Break()
	var timeout net.Error
	if err := receive(t, a, "now", time.Minute); err == nil || (errors.As(err, &timeout) && timeout.Timeout()) {
		t.Errorf("the broken connection ended with %v", err)
	}
	never.Lift()
	if err := exchange(t, other, "never", time.Minute); err != nil {
		t.Errorf("a lifted trip happened: %v", err)
	}
}
