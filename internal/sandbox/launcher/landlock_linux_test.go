package launcher_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox/launcher"
	"execserver/internal/testkit"
)

// TestMain makes the test program also the confined command.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "confined" {
		confined(os.Args[2], os.Args[3], os.Args[4])
		return
	}
	os.Exit(m.Run())
}

// TestMemoryOfOthers confines a command whose policy restricts the network alone as on
// kernels with old versions of Landlock. It may neither read nor write the memory of another
// process of its user, and can do everything with files.
func TestMemoryOfOthers(t *testing.T) {
	for _, uid := range []int{0, 61234} {
		if os.Geteuid() != 0 && uid != 0 {
			continue // this user alone
		}
		for _, abi := range []int{2, 3, 4, 5, 6} {
			t.Run(fmt.Sprintf("user %d/version %d", uid, abi), func(t *testing.T) {
				if launcher.LandlockABI() < abi {
					t.Skip("the kernel has no such version")
				}
				dir := t.TempDir()
				as := &syscall.SysProcAttr{}
				if uid != 0 {
					as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
					for path := dir; strings.HasPrefix(path, os.TempDir()+"/"); path = filepath.Dir(path) {
						if err := os.Chmod(path, 0o777); err != nil {
							t.Fatal(err)
						}
					}
				}
				other := exec.Command("/bin/cat")
				other.SysProcAttr = as
				input, err := other.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := other.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() { _, _ = input.Close(), other.Wait() }()
				program := filepath.Join(dir, "program")
				testkit.CopyProgram(t, program)
				command := exec.Command(program, "confined", strconv.Itoa(abi), strconv.Itoa(other.Process.Pid), dir)
				command.SysProcAttr = as
				output, err := command.CombinedOutput()
				if err != nil || string(output) != "<nil>\npermission denied\npermission denied\n<nil>\n" {
					t.Errorf("%v, %s", err, output)
				}
			})
		}
	}
}

// confined prints what a command can do: be confined, reach the memory of a process for
// reading and for writing, and move files.
func confined(version, pid, dir string) {
	runtime.LockOSThread()
	abi, _ := strconv.Atoi(version)
	fmt.Println(errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), launcher.LandlockAs(abi)))
	for _, flags := range []int{os.O_RDONLY, os.O_WRONLY} {
		_, err := os.OpenFile("/proc/"+pid+"/mem", flags, 0)
		fmt.Println(errors.Unwrap(err))
	}
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	err := errors.Join(os.Mkdir(one, 0o700), os.Mkdir(two, 0o700), os.WriteFile(one+"/file", nil, 0o600), os.Rename(one+"/file", two+"/file"),
		os.Link(two+"/file", one+"/file"), os.Symlink("file", one+"/link"), os.Chmod(two+"/file", 0o644), os.Truncate(two+"/file", 1),
		unix.Mkfifo(one+"/fifo", 0o600), os.RemoveAll(one), os.RemoveAll(two))
	fmt.Println(err)
}
