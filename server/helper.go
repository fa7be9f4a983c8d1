package server

// RunHelper runs this program as a helper and does not return, if a Server started it as
// one. Otherwise it returns at once and has no effect.
//
// A Server with a sandbox starts its own program again: to confine a command before
// executing it, and to read and write files inside a sandbox. A program with such a
// Server must therefore call RunHelper first in main, and its tests in TestMain:
//
//	func main() {
//		server.RunHelper()
//		...
//	}
//
// Without the call, the Server refuses every sandbox. A helper needs both arguments and
// descriptors that only a Server hands over. A program started with the arguments alone
// ends with an error.
func RunHelper() { runHelper() }
