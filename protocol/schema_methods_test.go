package protocol

import "reflect"

// direction says who sends the request or the notification.
type direction string

const (
	toServer direction = "clientToServer"
	toClient direction = "serverToClient"
	toBoth   direction = "both"
)

// method is a request or a notification.
type method struct {
	name       string
	capability string // that the server announces; "": none
	text       string
	direction  direction
	params     reflect.Type // nil: none
	result     reflect.Type // nil: a notification
}

func request[P, R any](name, capability, text string) method {
	return method{name, capability, text, toServer, paramsType[P](), reflect.TypeFor[R]()}
}

func notification[P any](d direction, name, capability, text string) method {
	return method{name, capability, text, d, paramsType[P](), nil}
}

func paramsType[P any]() reflect.Type {
	if t := reflect.TypeFor[P](); t != reflect.TypeFor[NoParams]() {
		return t
	}
	return nil
}

// methods is the table of all methods and notifications.
var methods = []method{
	request[InitializeParams, InitializeResult](MethodInitialize, "", "Opens, resumes or observes a session. It is the first request of a connection."),
	notification[NoParams](toServer, MethodInitialized, "", "Ends the handshake, after the answer to `initialize`."),
	notification[InitializeProgressParams](toClient, NotificationInitializeProgress, "", "Reports, before the answer to `initialize`, how much of the server has been copied to the other machine."),

	request[NoParams, EnvironmentInfo](MethodEnvironmentInfo, "", "Describes the machine and the server."),
	request[NoParams, EnvironmentStatus](MethodEnvironmentStatus, "", "Reports that the server is ready."),
	request[EnvironmentConfigReadParams, EnvironmentConfig](MethodEnvironmentConfigRead, "environmentConfigRead", "Reads parts of the configuration of Codex on the machine."),
	request[DiscoverRootsParams, DiscoveredRoots](MethodDiscoverRoots, "", "Reads the manifests of plugins and skills below directories."),

	request[StartParams, StartResult](MethodStart, "", "Starts a process."),
	request[ReadParams, ReadResult](MethodRead, "", "Reads the retained output of a process, and waits for more if it is asked to."),
	request[WriteParams, WriteResult](MethodWrite, "", "Writes to the standard input or the terminal of a process."),
	request[CloseStdinParams, Empty](MethodCloseStdin, "processCloseStdin", "Closes the standard input of a process after all earlier writes."),
	request[ResizeParams, Empty](MethodResize, "processResize", "Changes the size of a process's terminal."),
	request[SignalParams, Empty](MethodSignal, "", "Sends a signal to a process. The names of signals other than `interrupt` need the capability `processSignals`."),
	request[TerminateParams, TerminateResult](MethodTerminate, "", "Ends a process and its descendants. The mode `graceful` needs the capability `processTerminateGraceful`."),
	request[WaitParams, WaitResult](MethodWait, "processWait", "Waits until a process has exited."),
	request[SnapshotParams, SnapshotResult](MethodSnapshot, "processSnapshot", "Reads the beginning and the end of a process's output."),
	request[ScreenParams, ScreenResult](MethodScreen, "processScreen", "Reads what the terminal of a process shows."),
	request[ListParams, ListResult](MethodList, "processList", "Lists processes."),
	request[UsageParams, UsageResult](MethodUsage, "processUsage", "Reports the memory and the processor time that processes use."),
	request[ReadParams, ReadBackgroundResult](MethodReadBackground, "processReadBackground", "Reads the output of descendants that outlive their closed process."),
	notification[AckParams](toServer, MethodAck, "processAck", "Acknowledges the events of a process."),
	notification[Output](toClient, NotificationOutput, "", "Carries output of a process."),
	notification[Exited](toClient, NotificationExited, "", "Reports that a process has exited."),
	notification[Closed](toClient, NotificationClosed, "", "Reports that a process has exited and its output has ended. It is the last event of the process."),
	notification[Started](toClient, NotificationStarted, "processEvents", "Reports that a process has started, to a client that asked for it."),
	notification[Failed](toClient, NotificationFailed, "processEvents", "Reports that a process could not be started, to a client that asked for it."),
	notification[Dropped](toClient, NotificationDropped, "processEvents", "Reports that the server left out events of a process, to a client that asked for it."),

	request[NoParams, Empty](MethodTakeOver, "sessionObserve", "Makes the observing connection the owner of the session."),
	request[KeepParams, KeepResult](MethodKeep, "sessionKeep", "Names the session, and asks the server to keep it for longer without a connection."),
	request[NoParams, SessionsResult](MethodSessions, "sessionList", "Lists the sessions that the connection may observe."),
	request[EndSessionParams, Empty](MethodEndSession, "sessionControl", "Ends a session and all its processes."),
	notification[TakenOverParams](toClient, NotificationTakenOver, "sessionObserve", "Reports to the former owner that another connection has taken the session over."),
	notification[SessionEndedParams](toClient, NotificationSessionEnded, "", "Reports that the session has ended, to its observers or as the server stops."),

	request[FileParams, FileMetadata](MethodGetMetadata, "", "Describes a file."),
	request[FileParams, ReadFileResult](MethodReadFile, "", "Reads a whole file."),
	request[WriteFileParams, WriteFileResult](MethodWriteFile, "", "Writes a whole file."),
	request[CreateDirectoryParams, Empty](MethodCreateDirectory, "", "Creates a directory."),
	request[FileParams, ReadDirectoryResult](MethodReadDirectory, "", "Lists a directory."),
	request[WalkParams, WalkResult](MethodWalk, "", "Lists a tree of directories."),
	request[RemoveParams, Empty](MethodRemove, "", "Removes a file or a directory."),
	request[CopyParams, WriteFileResult](MethodCopy, "", "Copies a file or a directory on the machine."),
	request[RenameParams, Empty](MethodRename, "fsRename", "Renames a file or a directory."),
	request[FileParams, PathResult](MethodCanonicalize, "", "Resolves a path and all its symbolic links."),
	request[JoinParams, PathResult](MethodJoin, "", "Joins a path to a base path, without looking it up."),
	request[FileParams, PathResult](MethodParent, "", "Returns the parent of a path, without looking it up."),
	request[SetMetadataParams, Empty](MethodSetMetadata, "fsMetadata", "Changes the mode, the size or the modification time of a file."),
	request[SymlinkParams, Empty](MethodSymlink, "fsMetadata", "Creates a symbolic link."),
	request[FileParams, ReadLinkResult](MethodReadLink, "fsMetadata", "Reads the text of a symbolic link."),
	request[OpenParams, OpenResult](MethodOpen, "", "Opens a file. Modes other than `read` need the capability `fileWriteStreaming`."),
	request[ReadBlockParams, ReadBlockResult](MethodReadBlock, "", "Reads a block of an open file."),
	request[WriteBlockParams, Empty](MethodWriteBlock, "fileWriteStreaming", "Writes a block of an open file."),
	request[CloseParams, Empty](MethodClose, "", "Closes an open file."),
	request[WatchMissingParams, WatchMissingResult](MethodWatchMissing, "fsWatchMissing", "Watches for the appearance of missing files."),
	notification[MissingChangedParams](toClient, NotificationMissingChanged, "fsWatchMissing", "Reports that files have appeared or changed."),
	request[WatchParams, WatchResult](MethodWatch, "fsWatch", "Watches the tree below a directory."),
	request[UnwatchParams, Empty](MethodUnwatch, "fsWatch", "Ends a watch."),
	notification[ChangedParams](toClient, NotificationChanged, "fsWatch", "Reports changes in a watched tree."),

	request[HTTPRequest, HTTPResponse](MethodHTTPRequest, "", "Sends an HTTP request from the machine of the server."),
	notification[HTTPCancelParams](toServer, MethodHTTPCancel, "httpRequestCancel", "Ends an HTTP request."),
	notification[HTTPBodyDelta](toClient, NotificationHTTPBodyDelta, "", "Carries a piece of the body of an HTTP response."),

	request[TCPOpenParams, TCPOpenResult](MethodTCPOpen, "tcpOpen", "Opens a connection from the machine of the server."),
	notification[TCPData](toBoth, NotificationTCPData, "tcpOpen", "Carries data of a forwarded connection."),
	notification[TCPMoreCredit](toBoth, NotificationTCPCredit, "tcpOpen", "Allows the other side to send more data of a forwarded connection."),
	notification[TCPEnd](toBoth, NotificationTCPEnd, "tcpOpen", "Ends the data of one direction of a forwarded connection."),
	notification[TCPReset](toBoth, NotificationTCPReset, "tcpOpen", "Ends a forwarded connection at once."),

	request[RecordingsParams, RecordingsResult](MethodRecordings, "recordings", "Lists recordings of processes."),
	request[ReadRecordingParams, ReadRecordingResult](MethodReadRecording, "recordings", "Reads a part of a recording."),

	request[NoParams, WebLinkResult](MethodWebLink, "webLink", "Asks for a link to the page of the server."),
}
