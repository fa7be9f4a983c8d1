// Package client runs commands and accesses files, in the manner of os/exec and io/fs, on any
// machine that runs an exec-server, including this one.
//
// An [Environment] is a client of one machine. These functions return one:
//
//   - [Dial] connects to a server that listens.
//   - [Connect] connects over connections that your function makes, such as an SSH tunnel.
//   - [Launch] starts a server and uses its stdin and stdout.
//   - [New] uses one connection.
//   - client/local.New runs a server inside this process.
//   - client/environments.Open opens a machine by its name in Codex's configuration.
//
// [Environment.Command] returns a [Cmd], which works like exec.Cmd. [Environment.FS] returns a
// file system. [Environment.Transport] sends HTTP requests, and [Environment.DialContext]
// connects, from the machine. docs/client.md is the guide; PROTOCOL.md and EXTENSIONS.md define
// the protocol.
//
// # Processes
//
// A process starts, writes output, exits, and closes. Between exit and close, descendants may
// still write to its output. The server numbers these events. It retains output until the client
// acknowledges that it has read it, and then evicts the oldest when it needs the space. When a
// process has written more than the server retains, it blocks. OpenAI's servers lack the
// capability processAck, and evict unread output instead.
//
// The client has lost a process if it cannot learn how the process exits, or if output was evicted
// before it arrived. Methods that wait for the process then return a [*LostError].
//
// # Sessions
//
// The processes of an Environment belong to a session on the server, which their Environment
// owns. [Environment.Detach] closes the connection and leaves the session on the server, for
// Info.SessionLifetime.Detached or for the lease that [Environment.Keep] requested. Another
// program can resume the session with Options.Session, or observe it with Options.Observe.
// [Environment.Attach] returns a process that another program started. A principal is the identity
// that the server derives from a client's credentials.
//
// # Broken connections
//
// When a connection breaks, an Environment returned by Dial or Connect reconnects and resumes its
// session. It neither loses nor repeats output and input. Calls wait meanwhile, or fail with
// [ErrRecovering] if Options.FailFast is set. An operation that must not run twice is not
// repeated: it fails with an [*InterruptedError], and the server may or may not have carried it
// out. These are Process.Signal, Environment.SignalIn, Environment.EndSession and WebLink, and
// Copy, Create, Mkdir, Remove, Rename and Symlink of [FS].
//
// When the client cannot reconnect, the Environment has failed: Done is closed, Err and all calls
// return a [*DisconnectedError], and the client has lost its processes. An Environment of New or
// Launch fails as soon as its connection breaks.
//
// # Capabilities
//
// A method that needs a capability of the server says so. If the server lacks it, the method
// returns an [*UnsupportedError]. Info.Capabilities lists the capabilities by name.
//
// # Contexts
//
// A method that may block takes a context as its first argument, with three exceptions. The
// methods of a [Cmd] use the context passed to [Environment.Command], except [Cmd.Collect], which
// takes its own. The methods of an [FS] use the context passed to [FS.WithContext], because the
// interfaces of package fs take none. Close methods take none and return within seconds, whether
// or not the server responds.
//
// When its context is done, a call returns the cause of the context. When the Environment is
// closed or has failed, calls return [ErrClosed] or a [*DisconnectedError]. These errors may be
// wrapped. Only the context passed to Environment.Command kills a process.
//
// # Errors
//
// With [errors.Is], the errors of this package match those that the same operation returns locally:
// exec.ErrNotFound, exec.ErrWaitDelay, os.ErrProcessDone, fs.ErrNotExist, fs.ErrExist,
// fs.ErrPermission, errors.ErrUnsupported, and system errors such as syscall.EPIPE and
// syscall.ECONNREFUSED. If the server refuses a request for another reason, the error is a
// *protocol.Error.
//
// # Byte slices
//
// A function does not modify the byte slices passed to it, and does not use them after it has
// returned. A returned byte slice belongs to the caller, unless the documentation says otherwise.
package client
