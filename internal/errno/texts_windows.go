package errno

import "syscall"

// texts is empty, because Windows has texts of its own.
var texts map[syscall.Errno]string
