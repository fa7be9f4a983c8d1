package launcher

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settled is how long a command runs before its launcher makes itself small; most
// end sooner.
const settled = 100 * time.Millisecond

// forgetStart lets go of the parts of the program that only the start has needed.
// What is left to do takes few of them, which the kernel maps again when they are
// touched.
func forgetStart() {
	file, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// 00400000-00866000 r-xp 00000000 fd:00 1234 /path
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1][1] == 'w' || !strings.HasPrefix(fields[5], "/") {
			continue
		}
		first, last, _ := strings.Cut(fields[0], "-")
		start, err := strconv.ParseUint(first, 16, 64)
		end, err2 := strconv.ParseUint(last, 16, 64)
		if err == nil && err2 == nil {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED)
		}
	}
}
