package errno

import "syscall"

// texts differ from package syscall's in case or wording.
var texts = map[syscall.Errno]string{
	syscall.EPERM:        "Operation not permitted",
	syscall.ENOENT:       "No such file or directory",
	syscall.EIO:          "I/O error",
	syscall.ENXIO:        "No such device or address",
	syscall.ENOEXEC:      "Exec format error",
	syscall.EBADF:        "Bad file descriptor",
	syscall.EACCES:       "Permission denied",
	syscall.EBUSY:        "Resource busy",
	syscall.EEXIST:       "File exists",
	syscall.EXDEV:        "Cross-device link",
	syscall.ENOTDIR:      "Not a directory",
	syscall.EISDIR:       "Is a directory",
	syscall.EINVAL:       "Invalid argument",
	syscall.ETXTBSY:      "Text file busy",
	syscall.EFBIG:        "File too large",
	syscall.ENOSPC:       "No space left on device",
	syscall.EROFS:        "Read-only file system",
	syscall.ENAMETOOLONG: "Filename too long",
	syscall.ENOTEMPTY:    "Directory not empty",
	syscall.ELOOP:        "Symbolic link loop",
	syscall.E2BIG:        "Argument list too long",
	syscall.ENOMEM:       "Out of memory",
	syscall.EAGAIN:       "Resource temporarily unavailable",
	syscall.EMFILE:       "No file descriptors available",
}
