package supervise

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
)

// terminalEnv has the starter give its own standard input to the command, and use it afterwards.
const terminalEnv = "SUPERVISE_TEST_TERMINAL"

// useTerminal reads a line, which stops whoever is not in the terminal's foreground.
func useTerminal() {
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	fmt.Printf("starter read %q %v\n", line, err)
}

// session is a program that has a terminal of its own.
type session struct {
	*exec.Cmd
	t    *testing.T
	keys *os.File

	mu   sync.Mutex
	said strings.Builder
}

func onTerminal(t *testing.T, cmd *exec.Cmd) *session {
	t.Helper()
	keys, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{Cmd: cmd, t: t, keys: keys}
	go func() {
		buffer := make([]byte, 1024)
		for {
			n, err := keys.Read(buffer)
			s.mu.Lock()
			s.said.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, unless the test failed
		_ = cmd.Wait()
		_ = keys.Close()
	})
	return s
}

func (s *session) press(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, keys); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) await(text string) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		said := s.said.String()
		s.mu.Unlock()
		if strings.Contains(said, text) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the terminal does not show %q:\n%s", text, said)
		}
	}
}

func terminalStarter(script string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), starterEnv+"="+script, terminalEnv+"=1")
	return cmd
}

// A command that reads its terminal gets it, and its starter has it again afterwards.
func TestTerminalIsHandedOver(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, terminalStarter(`echo ready; read one; echo "command read $one"; sh -c 'read two; echo "its child read $two"'`))
	s.await("ready")
	s.press("first\n")
	s.await("command read first")
	s.press("second\n")
	s.await("its child read second")
	s.await("ended {Code:0")
	s.press("third\n")
	s.await(`starter read "third\n" <nil>`)
}

// Keys that signal reach a command that reads the terminal; the one that stops does not.
func TestKeysOfTheTerminal(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, terminalStarter(`trap 'echo interrupted; exit 7' INT; echo ready; read one; echo "read $one"; read two`))
	s.await("ready")
	s.press("first\n")
	s.await("read first")
	s.press("\x1a") // Ctrl-Z
	s.press("\x03") // Ctrl-C
	s.await("interrupted")
	s.await("ended {Code:7")
}

// A command in the background that wants the terminal is ended: it would stand still for ever.
func TestTerminalOfAnotherJob(t *testing.T) {
	t.Parallel()
	shell := exec.Command("sh", "-mc", `"$0" & wait; echo "over"`, os.Args[0])
	shell.Env = append(os.Environ(), starterEnv+`=echo ready; read one; echo "read $one"`, terminalEnv+"=1")
	s := onTerminal(t, shell)
	s.await("ended {Code:137 Signal:killed WantedTerminal:true")
}
