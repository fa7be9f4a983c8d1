package responses

import (
	"encoding/json"
	"fmt"
)

// An Item is one entry of a conversation in the Responses API. Type says which fields are
// set.
type Item struct {
	Type   string `json:"type"`
	ID     string `json:"id,omitempty"`
	CallID string `json:"call_id,omitempty"`
	Name   string `json:"name,omitempty"`

	// Arguments is the JSON text of a function call, Input the plain text of a custom
	// tool call.
	Arguments string `json:"arguments,omitempty"`
	Input     string `json:"input,omitempty"`

	// Output is a tool's output in the form in which the client sent it. Use Text.
	Output json.RawMessage `json:"output,omitempty"`

	Role    string    `json:"role,omitempty"`
	Content []Content `json:"content,omitempty"`
}

// Content is a part of a message or of a tool's output.
type Content struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	ImageURL string `json:"image_url,omitempty"`
}

// Call returns the model's call of a function tool, with args as its JSON arguments.
func Call(id, tool string, args any) Item {
	text, err := json.Marshal(args)
	if err != nil {
		panic(fmt.Sprintf("arguments of %s: %v", tool, err)) // a mistake in the test itself
	}
	return Item{Type: "function_call", ID: "fc_" + id, CallID: id, Name: tool, Arguments: string(text)}
}

// CustomCall returns the model's call of a tool that takes plain text, such as
// apply_patch.
func CustomCall(id, tool, input string) Item {
	return Item{Type: "custom_tool_call", ID: "ctc_" + id, CallID: id, Name: tool, Input: input}
}

// Message returns the model's message to the user. A reply with nothing else ends the
// client's turn.
func Message(text string) Item {
	return Item{
		Type:    "message",
		ID:      "msg_1",
		Role:    "assistant",
		Content: []Content{{Type: "output_text", Text: text}},
	}
}

// Parts returns a tool's output as a list of contents. Clients send either a text or such
// a list.
func (it Item) Parts() []Content {
	var text string
	if json.Unmarshal(it.Output, &text) == nil {
		return []Content{{Type: "input_text", Text: text}}
	}
	var parts []Content
	if json.Unmarshal(it.Output, &parts) == nil {
		return parts
	}
	return []Content{{Type: "input_text", Text: string(it.Output)}}
}

// Text returns the text of a tool's output or of a message.
func (it Item) Text() string {
	parts := it.Content
	if len(it.Output) > 0 {
		parts = it.Parts()
	}
	var text string
	for _, part := range parts {
		text += part.Text
	}
	return text
}
