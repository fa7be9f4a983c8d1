package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

func init() { children["strays"] = childStrays }

// childStrays starts as many processes as its argument says, which become children of
// its own parent, prints their number when they have ended, and waits for its input to end.
func childStrays(args []string) {
	n, err := strconv.Atoi(args[0])
	for i := 0; i < n && err == nil; i++ {
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT}
		err = cmd.Start()
	}
	fmt.Println("started", n, err)
	_, _ = os.Stdin.Read(make([]byte, 1))
}
