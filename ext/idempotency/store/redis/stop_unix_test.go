//go:build unix

package redis_test

import "syscall"

// stop makes the process hang, with its connections open.
func (s *server) stop() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

func (s *server) resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }
