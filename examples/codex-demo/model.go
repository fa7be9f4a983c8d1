package main

import (
	"fmt"
	"strings"

	"execserver/internal/testkit/responses"
)

// asPrompted is the model: it has Codex run the last prompt as a command.
func asPrompted(r *responses.Request) []responses.Item {
	if len(r.Tools) == 0 { // Codex wants a title for the conversation
		return []responses.Item{responses.Message("exec-server")}
	}
	prompt, turn := lastPrompt(r)
	out, done := r.Output(commandID(turn))
	if !done {
		return []responses.Item{responses.Call(commandID(turn), "exec_command", map[string]any{"cmd": prompt, "yield_time_ms": 30000})}
	}
	return []responses.Item{responses.Message(summary(out.Text()))}
}

// commandID is the id of the call that runs a prompt.
func commandID(turn int) string { return fmt.Sprintf("command-%d", turn) }

// lastPrompt returns what the user said last, and how many messages of the user there were.
func lastPrompt(r *responses.Request) (prompt string, turn int) {
	for _, item := range r.Input {
		if item.Type == "message" && item.Role == "user" {
			prompt = item.Text()
			turn++
		}
	}
	return prompt, turn
}

// summary is what the model says about the output of a command.
func summary(output string) string {
	if strings.Contains(output, "Process exited with code 0") {
		return "The box ran that."
	}
	return "The box says: " + output
}
