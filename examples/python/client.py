#!/usr/bin/env python3
"""A client of the exec-server protocol, with a demonstration: python3 client.py ws://HOST:PORT [TOKEN]"""
import base64, collections, http.client, itertools, json, os, signal, socket, struct, sys, time, uuid
from urllib.parse import urlsplit


class RequestFailed(Exception):
    """The server has answered with an error. args: code, message. Decide by the code."""

class SessionOver(Exception):
    """The session cannot be resumed, and its processes are gone."""


class WebSocket:
    """As much of RFC 6455 as the protocol needs. A lost connection raises an OSError."""
    TEXT, CLOSE, PING, PONG = 1, 8, 9, 10

    def __init__(self, url, token=None, silence=75):
        at, key = urlsplit(url), base64.b64encode(os.urandom(16)).decode()
        self.socket = socket.create_connection((at.hostname, at.port or 80), timeout=silence)
        self.stream = self.socket.makefile("rb")
        lines = [f"GET {at.path or '/'} HTTP/1.1", f"Host: {at.netloc}", "Connection: Upgrade",
                 "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
        login = [f"Authorization: Bearer {token}"] if token else []
        self.socket.sendall("\r\n".join(lines + login + ["", ""]).encode())
        status, headers = self.stream.readline().decode(), http.client.parse_headers(self.stream)
        if " 101 " not in status:
            raise SessionOver(status, self.stream.read(int(headers["Content-Length"] or 0)).decode())

    def send(self, payload, opcode=TEXT):
        """Send a message in one frame. A client must mask its payload."""
        size, mask = len(payload), os.urandom(4)
        length = (struct.pack("!B", 128 + size) if size < 126 else
                  struct.pack("!BH", 254, size) if size < 65536 else struct.pack("!BQ", 255, size))
        keys = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        masked = (int.from_bytes(payload, "big") ^ keys).to_bytes(size, "big")
        self.socket.sendall(bytes([128 + opcode]) + length + mask + masked)

    def receive(self):
        """Return the next message. Answer pings: that acknowledges what came before them."""
        message = b""
        while True:
            first, size = self.read(2)
            if size >= 126:
                size = int.from_bytes(self.read(2 if size == 126 else 8), "big")
            payload, opcode = self.read(size), first & 15
            if opcode == self.PING:
                self.send(payload, self.PONG)
            elif opcode == self.CLOSE:
                code, reason = int.from_bytes(payload[:2], "big"), payload[2:].decode()
                raise (SessionOver if code in (1000, 1001, 1002) else ConnectionError)(code, reason)
            elif opcode != self.PONG:
                message += payload
                if first & 128:
                    return message

    def read(self, size):
        data = self.stream.read(size)
        if len(data) < size:
            raise ConnectionError("the connection was cut")
        return data


class Process:
    """A process on the server. Iterate over it for its output, (stream, data); then it has an exit_code."""
    def __init__(self, client):
        self.client, self.id, self.output = client, uuid.uuid4().hex, collections.deque()
        self.started, self.closed, self.exit_code, self.error = False, False, None, None
        self.last, self.early = 0, {}  # the number of the last event, and events that came after a gap

    def __iter__(self):
        while self.output or not self.closed:
            if self.output:
                yield self.output.popleft()
            else:
                self.client.pump()
        if self.error:
            raise self.error

    def write(self, data):
        """Type into the terminal or write to stdin, exactly once even if the connection is cut meanwhile."""
        status = self.client.request("process/write", True, processId=self.id, writeId=uuid.uuid4().hex,
                                     chunk=base64.b64encode(data).decode())["status"]
        if status != "accepted":
            raise BrokenPipeError(status)

    def handle(self, method, event):
        """Process events in the order of their numbers: drop what is known, hold back what follows a gap."""
        if event["seq"] > self.last:
            self.early[event["seq"]] = method, event
        while self.last + 1 in self.early:
            self.last += 1
            method, event = self.early.pop(self.last)
            if method == "process/output":
                self.output.append((event["stream"], base64.b64decode(event["chunk"])))
            elif method == "process/exited":
                self.exit_code = event["exitCode"]
            else:
                self.closed = True

    def catch_up(self):
        """After a cut, ask for what follows the last event. Codex 0.171 does not send it again by itself."""
        try:
            result = self.client.request("process/read", True, processId=self.id, afterSeq=self.last)
        except RequestFailed as error:
            self.closed, self.error = True, error
            return
        for chunk in result["chunks"]:
            exits = result["exited"] and self.exit_code is None
            if chunk["seq"] > self.last + 1 + exits:  # the exit has a number, too
                self.error = EOFError("the server has not kept all output")  # Codex 0.171 drops silently
            self.last = max(self.last, chunk["seq"] - 1)
            self.handle("process/output", chunk)
        if result["exited"]:
            self.exit_code = result["exitCode"]
        self.closed = self.closed or result["closed"]
        self.last = max(self.last, result["nextSeq"] - 1)  # the result stands for all events up to here
        for method, event in [self.early[number] for number in sorted(self.early)]:
            self.handle(method, event)


class Client:
    """A session on a server. It receives only during calls. After a cut the next call resumes it."""
    def __init__(self, url, token=None, pause=0.5, patience=90):
        self.url, self.token, self.session = url, token, None
        self.pause, self.patience = pause, patience  # seconds before and for coming back
        self.processes, self.replies, self.ids, self.resumed = {}, {}, itertools.count(1), 0
        self.attach()

    def start(self, argv, env={"PATH": "/usr/bin:/bin"}, cwd="file:///tmp", tty=False):
        """Start a process. env is all that it gets; cwd is a URI: Codex 0.171 takes no native path."""
        process = Process(self)
        self.processes[process.id] = process
        try:
            self.request("process/start", True, processId=process.id, argv=argv, env=env, cwd=cwd, tty=tty)
        except RequestFailed:
            process.catch_up()  # was it started before, and a cut has swallowed the reply?
            if process.error:
                raise
        process.started = True
        return process

    def close(self):
        """Terminate the processes, and say farewell with the code 1000, so that the session ends at once."""
        for process in self.processes.values():
            if process.started and not process.closed:
                self.request("process/terminate", True, processId=process.id)
                list(process)
        self.ws.send(struct.pack("!H", 1000), WebSocket.CLOSE)
        self.ws.socket.shutdown(socket.SHUT_WR)

    def request(self, method, repeat=False, **params):
        """Return the result. Repeat after a cut what may be done twice; else a cut raises an OSError."""
        while True:
            try:
                return self.exchange(method, params)
            except OSError as cut:
                self.resume(cut)
                if not repeat:
                    raise

    def exchange(self, method, params):
        number = next(self.ids)
        self.ws.send(json.dumps({"id": number, "method": method, "params": params}).encode())
        while number not in self.replies:
            self.dispatch(json.loads(self.ws.receive()))
        reply = self.replies.pop(number)
        if "error" in reply:
            raise RequestFailed(reply["error"]["code"], reply["error"]["message"])
        return reply["result"]

    def pump(self):
        """Wait for the next message, and handle it."""
        try:
            self.dispatch(json.loads(self.ws.receive()))
        except OSError as cut:
            self.resume(cut)

    def dispatch(self, message):
        method, params = message.get("method"), message.get("params")
        if method in ("process/output", "process/exited", "process/closed"):
            self.processes[params["processId"]].handle(method, params)
        elif method in ("session/ended", "session/takenOver"):
            self.patience = 0  # do not come back
        elif method is None:
            self.replies[message["id"]] = message

    def attach(self):
        """Connect, and open a session or resume it."""
        self.ws = WebSocket(self.url, self.token)
        result = self.exchange("initialize", {"clientName": "example", "resumeSessionId": self.session})
        self.ws.send(b'{"method":"initialized"}')
        self.session = result["sessionId"]

    def resume(self, cut):
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            self.ws.stream.close()
            self.ws.socket.close()
            time.sleep(self.pause)
            try:
                self.attach()
            except OSError:
                pass  # the network is still down
            except RequestFailed as error:
                if error.args[0] != -32010:  # that one says that the server has not noticed the cut yet
                    raise SessionOver(*error.args)
            else:
                self.resumed += 1
                for process in self.processes.values():
                    if process.started and not process.closed:
                        process.catch_up()
                return
        raise SessionOver(*cut.args)


def main(url, token=None):
    def check(held, what):
        print("ok    " if held else "FAILED", what)
        results.append(held)

    signal.alarm(600)  # ends what hangs
    client, results = Client(url, token), []

    process = client.start(["sh", "-c", "echo fine; echo bad >&2; exit 3"])
    output = sorted(process)
    check(output == [("stderr", b"bad\n"), ("stdout", b"fine\n")], f"a command prints {output}")
    check(process.exit_code == 3, f"its exit status is {process.exit_code}")

    shell = client.start(["sh"], env={"PATH": "/usr/bin:/bin", "TERM": "dumb"}, tty=True)
    shell.write(b"echo answer $((6 * 7)); exit\r")  # Enter is CR
    screen = b"".join(data for _, data in shell)
    check(b"answer 42\r\n" in screen, f"a shell on a terminal answers {screen}")

    process = client.start(["sh", "-c", "for i in $(seq 100); do echo line $i; sleep 0.1; done"])
    client.pause, output = 2, b""  # stay away long enough to miss lines
    for _, data in process:
        output += data
        if b"line 50\n" in output and not client.resumed:
            client.ws.socket.shutdown(socket.SHUT_RDWR)
    check(client.resumed == 1, f"the session was resumed {client.resumed} times")
    check(output.splitlines() == [b"line %d" % n for n in range(1, 101)],
          f"{output.count(b'line')} lines came, each exactly once")
    client.close()
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
