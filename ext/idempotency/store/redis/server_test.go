package redis_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// A server is one of a test's own, which it may restart, kill and misconfigure.
type server struct {
	t    testing.TB
	dir  string
	args []string
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
}

// Settings of servers.
var (
	noPersistence = []string{"--save", "", "--appendonly", "no"}
	aofAlways     = []string{"--save", "", "--appendonly", "yes", "--appendfsync", "always"}
	aofEverysec   = []string{"--save", "", "--appendonly", "yes", "--appendfsync", "everysec"}
)

// startServer starts a server, which ends with the test.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	s := newServer(t)
	s.args = args
	s.start()
	return s
}

func newServer(t testing.TB) *server {
	t.Helper()
	serverURL(t) // where there is no shared server there is none of one's own
	// A short name: the path of a socket has little room.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

func serverBinary(t testing.TB) string {
	t.Helper()
	for _, name := range []string{os.Getenv("REDIS_SERVER"), "redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no redis-server or valkey-server is installed: nothing to start, restart and kill")
	return ""
}

func (s *server) socket() string { return filepath.Join(s.dir, "s") }

// start returns when the server says that it is ready.
func (s *server) start(args ...string) {
	s.t.Helper()
	if err := s.tryStart(args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) tryStart(args ...string) error {
	all := slices.Concat([]string{"--port", "0", "--unixsocket", s.socket(), "--dir", s.dir}, s.args, args)
	cmd := exec.Command(serverBinary(s.t), all...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.gone = cmd, make(chan struct{})
	ready, log := make(chan struct{}, 1), new(strings.Builder)
	go func() {
		defer close(s.gone)
		lines := bufio.NewScanner(io.TeeReader(out, log))
		for lines.Scan() {
			if strings.Contains(lines.Text(), "eady to accept connections") {
				select {
				case ready <- struct{}{}:
				default:
				}
			}
		}
		_ = cmd.Wait() // a server that was killed ends with an error
	}()
	select {
	case <-ready:
		return nil
	case <-s.gone:
		return fmt.Errorf("the server ended:\n%s", log)
	case <-time.After(20 * time.Second):
		s.kill()
		return fmt.Errorf("the server was not ready within 20 s:\n%s", log)
	}
}

// kill ends the process as a crash does.
func (s *server) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.gone
}

// shutdown ends the process without saving anything.
func (s *server) shutdown() {
	s.t.Helper()
	once := newClient(s.t, &goredis.Options{Network: "unix", Addr: s.socket(), MaxRetries: -1})
	_ = once.ShutdownNoSave(s.t.Context()).Err() // the answer is that the connection ends
	select {
	case <-s.gone:
	case <-time.After(20 * time.Second):
		s.t.Fatal("the server did not shut down within 20 s")
	}
}

// listen makes the server listen on a port of loopback too, and returns it.
func (s *server) listen() string {
	s.t.Helper()
	for range 20 {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		if s.client().ConfigSet(s.t.Context(), "port", port).Err() == nil {
			return port
		}
	}
	s.t.Fatal("no port is free")
	return ""
}

// client returns a new client of the server.
func (s *server) client() *goredis.Client {
	return newClient(s.t, &goredis.Options{Network: "unix", Addr: s.socket()})
}

// aof reads the append-only file, whatever it is made of.
func (s *server) aof() map[string][]byte {
	s.t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(filepath.Join(s.dir, "appendonlydir"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return files
}

// restore puts back an append-only file: an older copy, or what a power
// failure leaves of it.
func (s *server) restore(files map[string][]byte) {
	s.t.Helper()
	for path, b := range files {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}
