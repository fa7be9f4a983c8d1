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
// touched. Parts that differ from the file, as a dynamic linker leaves them, stay.
func forgetStart() {
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer file.Close()
	var start, end uint64
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			// 00400000-00866000 r-xp 00000000 fd:00 1234 /path
			start, end = 0, 0
			if len(fields) >= 6 && fields[1][1] != 'w' && strings.HasPrefix(fields[5], "/") {
				first, last, _ := strings.Cut(fields[0], "-")
				start, _ = strconv.ParseUint(first, 16, 64)
				end, _ = strconv.ParseUint(last, 16, 64)
			}
		case start < end && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED)
		}
	}
}
