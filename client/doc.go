// Package client is os/exec and io/fs on any machine that runs an exec-server, this one
// included.
//
// An [Environment] is a place with commands and files. [Dial] connects to a server that
// listens, [Connect] uses connections that a function of yours makes, [Launch] starts a
// server and uses its stdio, and [New] uses one connection.
// Package client/local makes an Environment of this process, and package
// client/environments opens those that Codex's configuration names. Everything else works
// in the same way with each of them, also errors.
//
// [Environment.Command] returns a [Cmd], which works like that of os/exec.
// [Environment.FS] is a file system, and [Environment.Transport] sends HTTP requests from
// the machine. docs/client.md is the guide, and PROTOCOL.md defines the protocol.
//
// # Broken connections
//
// When a connection of Dial or Connect breaks, the client connects again and resumes the
// session (PROTOCOL.md, "Sessions"). It neither loses nor repeats output and input. Calls
// wait meanwhile, or fail with [ErrRecovering] if Options.FailFast is set. A request that
// the server must not carry out twice is not repeated: it fails with a
// [*DisconnectedError], and the caller cannot know whether the server carried it out. When
// the connection is lost for good, everything in the Environment fails.
//
// # Sessions
//
// The processes of an Environment belong to a session of the server. [Environment.Detach]
// leaves it there, for as long as [Environment.Keep] has asked for, and another program
// continues it with Options.Session, or watches it with Options.Observe.
// [Environment.Attach] returns the processes that another program started.
//
// # Contexts
//
// A method that may wait takes a context first, with three exceptions. Those of a [Cmd]
// have the context given to [Environment.Command], as in os/exec; only [Cmd.Collect], which
// must not end the command, takes another. Those of an [FS] have the one of
// [FS.WithContext], because package fs has none. And Close takes none, but it ends within
// seconds whatever the server does.
//
// A call that waits for the server returns when its context ends, with the context's
// cause, and when the Environment ends, with [ErrClosed] or a [*DisconnectedError], on its
// own or inside another error. The context of a call never ends a process that has
// started; only that of [Environment.Command] does.
//
// # Errors
//
// The errors of this package match, by [errors.Is], those that the same operation has
// locally: exec.ErrNotFound, exec.ErrWaitDelay, fs.ErrNotExist, fs.ErrExist,
// fs.ErrPermission and errors.ErrUnsupported. What the server refuses for another reason
// is a *protocol.Error. A call that needs a capability that the server lacks fails with an
// [*UnsupportedError].
//
// # Byte slices
//
// No function keeps or changes a slice of bytes that it is passed, after it has returned.
// A slice that it returns belongs to the caller, except where the text says otherwise.
package client
