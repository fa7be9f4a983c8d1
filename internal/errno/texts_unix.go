//go:build unix

package errno

import "syscall"

// texts has musl's wording, which clients have always received and which differs from
// Go's in case and detail. Another errno gets Go's text.
var texts = map[syscall.Errno]string{
	syscall.EADDRINUSE:    "Address in use",
	syscall.EADDRNOTAVAIL: "Address not available",
	syscall.E2BIG:         "Argument list too long",
	syscall.EACCES:        "Permission denied",
	syscall.EAGAIN:        "Resource temporarily unavailable",
	syscall.EBADF:         "Bad file descriptor",
	syscall.EBUSY:         "Resource busy",
	syscall.ECONNREFUSED:  "Connection refused",
	syscall.ECONNRESET:    "Connection reset by peer",
	syscall.EDQUOT:        "Quota exceeded",
	syscall.EEXIST:        "File exists",
	syscall.EFAULT:        "Bad address",
	syscall.EFBIG:         "File too large",
	syscall.EHOSTUNREACH:  "Host is unreachable",
	syscall.EINTR:         "Interrupted system call",
	syscall.EINVAL:        "Invalid argument",
	syscall.EIO:           "I/O error",
	syscall.EISDIR:        "Is a directory",
	syscall.ELOOP:         "Symbolic link loop",
	syscall.EMFILE:        "No file descriptors available",
	syscall.EMLINK:        "Too many links",
	syscall.ENAMETOOLONG:  "Filename too long",
	syscall.ENETUNREACH:   "Network unreachable",
	syscall.ENFILE:        "Too many open files in system",
	syscall.ENODEV:        "No such device",
	syscall.ENOENT:        "No such file or directory",
	syscall.ENOEXEC:       "Exec format error",
	syscall.ENOMEM:        "Out of memory",
	syscall.ENOSPC:        "No space left on device",
	syscall.ENOSYS:        "Function not implemented",
	syscall.ENOTDIR:       "Not a directory",
	syscall.ENOTEMPTY:     "Directory not empty",
	syscall.ENOTSUP:       "Not supported",
	syscall.ENXIO:         "No such device or address",
	syscall.EOVERFLOW:     "Value too large for data type",
	syscall.EPERM:         "Operation not permitted",
	syscall.EPIPE:         "Broken pipe",
	syscall.EROFS:         "Read-only file system",
	syscall.ESPIPE:        "Invalid seek",
	syscall.ESRCH:         "No such process",
	syscall.ESTALE:        "Stale file handle",
	syscall.ETIMEDOUT:     "Operation timed out",
	syscall.ETXTBSY:       "Text file busy",
	syscall.EXDEV:         "Cross-device link",
}
