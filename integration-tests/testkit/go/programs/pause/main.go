// pause is PID 1: of every pod sandbox, and of every node of the test clusters.
//
// It collects the children it inherits and ends at SIGTERM or SIGINT. As the
// first process of a PID namespace it takes everything else there with it.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for s := range signals {
		if s != syscall.SIGCHLD {
			os.Exit(0)
		}
		collect()
	}
}

// collect waits for every child that has ended. One SIGCHLD may stand for many.
func collect() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}
