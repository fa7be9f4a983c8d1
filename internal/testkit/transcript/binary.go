package transcript

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// dataMember holds the data of a binary message among the members of its JSON. No JSON of a
// server has a member of this name.
const dataMember = "\x00"

// parseData parses the operands of a line about a binary message: its data, and the JSON.
func parseData(rest string) (data, text string, err error) {
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return "", "", fmt.Errorf("data needs a quoted text: %w", err)
	}
	data, err = strconv.Unquote(quoted)
	return data, strings.TrimSpace(rest[len(quoted):]), err
}

// joinData makes a binary message.
func joinData(text, data string) []byte {
	b := binary.AppendUvarint([]byte{0}, uint64(len(text)))
	return append(append(b, text...), data...)
}

// splitData returns the JSON and the data of a binary message.
func splitData(msg []byte) (head, data []byte, err error) {
	length, n := binary.Uvarint(msg[1:])
	if n <= 0 || length > uint64(len(msg)-1-n) {
		return nil, nil, errors.New("the length in a binary message is wrong")
	}
	rest := msg[1+n:]
	return rest[:length], rest[length:], nil
}

// decodeMessage decodes a message of the server.
func decodeMessage(msg []byte) (map[string]any, error) {
	var data []byte
	bulk := len(msg) > 0 && msg[0] == 0
	if bulk {
		var err error
		if msg, data, err = splitData(msg); err != nil {
			return nil, err
		}
	}
	v, err := decode(msg)
	message, ok := v.(map[string]any)
	if err != nil || !ok {
		return nil, errors.New("not a JSON object")
	}
	if bulk {
		message[dataMember] = string(data)
	}
	return message, nil
}
