//go:build unix

package rawmcp

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the process, and what it starts, into a group of its own.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills all of the group that is left.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
