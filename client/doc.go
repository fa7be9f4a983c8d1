// Package client is os/exec and io/fs on any machine that runs an exec-server,
// this one included.
//
// An [Environment] is a place where commands run and files lie. [Dial] connects
// to a server that listens, [Launch] starts one and speaks over its stdio,
// [Local] needs no server at all, and [Open] takes what environments.toml or
// CODEX_EXEC_SERVER_URL calls by a name. Everything else works with each of
// them in the same way, errors included.
//
// [Environment.Command] makes a [Cmd], which is used like that of os/exec;
// [Environment.FS] is a file system, [Environment.Transport] sends HTTP
// requests from there.
//
// A connection that breaks is made again and the session resumed, with nothing
// lost and nothing doubled; calls wait meanwhile. docs/client.md is the guide,
// PROTOCOL.md what goes over the wire.
package client
